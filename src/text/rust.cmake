# The Rust half of the room: one static library, built by cargo into build/cargo, which all presets share
# (their C++ flags do not concern it). Gives the target rota_text_rust.

find_program(ROTA_CARGO cargo HINTS $ENV{HOME}/.cargo/bin)
set(rota_cargo_minimum 1.87)
set(rota_cargo_advice "rota's text room needs cargo ${rota_cargo_minimum} or later. \
Get it from https://rustup.rs (or `rustup update stable`), then configure again; \
-DROTA_CARGO=/path/to/cargo names one that is not on the PATH.")
if(NOT ROTA_CARGO)
  message(FATAL_ERROR "cargo was not found. ${rota_cargo_advice}")
endif()
execute_process(COMMAND ${ROTA_CARGO} --version OUTPUT_VARIABLE rota_cargo_version
                RESULT_VARIABLE rota_cargo_failed ERROR_QUIET)
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" rota_cargo_version "${rota_cargo_version}")
if(rota_cargo_failed OR rota_cargo_version VERSION_LESS rota_cargo_minimum)
  message(FATAL_ERROR "${ROTA_CARGO} is version '${rota_cargo_version}'. ${rota_cargo_advice}")
endif()

set(rota_cargo_target ${CMAKE_SOURCE_DIR}/build/cargo)
set(rota_rust_dir ${CMAKE_CURRENT_SOURCE_DIR}/rust)
set(rota_rust_library ${rota_cargo_target}/release/librota_text_rust.a)
file(GLOB rota_rust_sources CONFIGURE_DEPENDS ${rota_rust_dir}/src/*.rs)

# cargo takes a lock on its target folder: builds of two presets at once wait for one another. The crates
# of Cargo.lock are downloaded by the first build; later ones need no network.
add_custom_command(
  OUTPUT ${rota_rust_library}
  COMMAND ${ROTA_CARGO} build --release --locked --quiet --manifest-path ${rota_rust_dir}/Cargo.toml
          --target-dir ${rota_cargo_target}
  COMMAND ${CMAKE_COMMAND} -E touch ${rota_rust_library}
  DEPENDS ${rota_rust_sources} ${rota_rust_dir}/Cargo.toml ${rota_rust_dir}/Cargo.lock
  COMMENT "cargo build: tokenizer and chat templates (minutes the first time)"
  USES_TERMINAL VERBATIM)
add_custom_target(rota_text_rust_build DEPENDS ${rota_rust_library})

add_library(rota_text_rust STATIC IMPORTED GLOBAL)
set_target_properties(rota_text_rust PROPERTIES IMPORTED_LOCATION ${rota_rust_library})
target_link_libraries(rota_text_rust INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
add_dependencies(rota_text_rust rota_text_rust_build)
