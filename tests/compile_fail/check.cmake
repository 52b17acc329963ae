# Compiles SOURCE with FLAGS, which must work, and again with ROTA_WRONG defined, which must fail with
# a line that matches MESSAGE.
set(command ${CMAKE_COMMAND} -E env LC_ALL=C ${COMPILER} -std=c++20 -fsyntax-only ${FLAGS} ${SOURCE})
execute_process(COMMAND ${command} RESULT_VARIABLE control ERROR_VARIABLE said)
if(NOT control EQUAL 0)
  message(FATAL_ERROR "${SOURCE} does not compile as it is, so nothing is proved:\n${said}")
endif()
execute_process(COMMAND ${command} -DROTA_WRONG RESULT_VARIABLE wrong ERROR_VARIABLE said)
if(wrong EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles with ROTA_WRONG: the types no longer refuse it")
endif()
if(NOT said MATCHES "error: [^\n]*(${MESSAGE})")
  message(FATAL_ERROR "${SOURCE} fails for another reason than '${MESSAGE}':\n${said}")
endif()
