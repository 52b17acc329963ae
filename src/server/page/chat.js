// The chat: sends the conversation to /v1/chat/completions, shows the stream, hands each token to the board.
// Model output only ever becomes text nodes: nothing that a model or a person writes is markup.
'use strict';

(() => {
  const element = id => document.getElementById(id);
  const messages = element('messages'), question = element('question'), status = element('status');
  const conversation = [];
  let model = '', ranks = 1, topology = null, running = null, shownTokens = [];

  // The key of a server that asks for one: asked for once, kept as long as the tab.
  const kKey = 'rota-api-key';
  class KeyWanted extends Error {}

  async function fetchWithKey(path, options = {}) {
    const key = sessionStorage.getItem(kKey);
    const headers = {...options.headers};
    // A header holds bytes: those of the key in UTF-8.
    if (key) headers.authorization = 'Bearer ' + String.fromCharCode(...new TextEncoder().encode(key));
    const response = await fetch(path, {...options, headers});
    if (response.status === 401) throw new KeyWanted(key ? 'That is not the key of this server.' : 'This server asks for a key.');
    return response;
  }

  function askForKey(why) {
    status.textContent = why;
    sessionStorage.removeItem(kKey);
    element('ask').hidden = true;
    element('unlock').hidden = false;
    element('key').focus();
    return new Promise(resolve => {
      element('unlock').onsubmit = event => {
        event.preventDefault();
        sessionStorage.setItem(kKey, element('key').value.trim());
        element('key').value = '';
        element('unlock').hidden = true;
        element('ask').hidden = false;
        resolve();
      };
    });
  }

  async function loadInfo() {
    const response = await fetchWithKey('/rota/info');
    if (!response.ok) throw new Error(response.statusText || `status ${response.status}`);
    const info = await response.json();
    model = info.model;
    ranks = info.ranks;
    element('model').textContent = `${info.model} · ${info.moe_layers} layers of ${info.experts} experts` +
      (info.ranks > 1 ? ` on ${info.ranks} ranks` : '');
    element('board-title').textContent = `${info.experts} experts, ${info.top_k} serve each token`;
    board.setShape({layers: info.moe_layers, experts: info.experts, topK: info.top_k});
    if (ranks > 1) await loadRanks();
  }

  // Again after each answer: bytes a token are known then.
  async function loadRanks() {
    const response = await fetchWithKey('/v1/rota/topology');
    if (!response.ok) return;
    topology = await response.json();
    showRanks(topology);
  }

  function bubble(kind) {
    const hint = element('hint');
    if (hint) hint.remove();
    const box = document.createElement('div');
    box.className = `message ${kind}`;
    messages.append(box);
    return box;
  }

  function show(box, text, kind, token) {
    const span = document.createElement('span');
    span.textContent = text;
    if (kind === 'reasoning') span.classList.add('reasoning');
    if (token) {
      span.classList.add('token');
      span.style.backgroundColor = board.tint(token);
      shownTokens.push({span, token});
      const point = () => {
        document.querySelectorAll('.token.chosen').forEach(other => other.classList.remove('chosen'));
        span.classList.add('chosen');
        board.choose(token);
      };
      span.addEventListener('mouseenter', point);
      span.addEventListener('click', point);
    }
    const atEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 60;
    box.append(span);
    if (atEnd) messages.scrollTop = messages.scrollHeight;
  }
  board.onLayer = () => {
    shownTokens.forEach(({span, token}) => { span.style.backgroundColor = board.tint(token); });
    if (topology) showRanks(topology);
  };

  // Server-sent events of a response body: yields the data of each event.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      rest += value;
      let end;
      while ((end = rest.indexOf('\n\n')) >= 0) {
        const event = rest.slice(0, end);
        rest = rest.slice(end + 2);
        if (event.startsWith('data: ')) yield event.slice(6);
      }
    }
  }

  async function errorOf(response) {
    try {
      return (await response.json()).error.message;
    } catch {
      return `${response.status} ${response.statusText}`;
    }
  }

  async function answer(box, signal) {
    const response = await fetchWithKey('/v1/chat/completions', {
      method: 'POST', signal, headers: {'content-type': 'application/json'},
      body: JSON.stringify({
        model, messages: conversation, stream: true, return_routed_experts: true, max_tokens: 1024,
        stream_options: {include_usage: true},
      }),
    });
    if (!response.ok) throw new Error(await errorOf(response));
    let text = '', tokens = 0;
    const started = performance.now();
    for await (const data of events(response.body)) {
      if (data === '[DONE]') break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices && event.choices[0];
      if (!choice) continue;
      const routed = choice.routed_experts || [];
      for (const token of routed) board.add(token);
      tokens += routed.length;
      const {content, reasoning} = choice.delta || {};
      if (reasoning) show(box, reasoning, 'reasoning', routed[routed.length - 1]);
      if (content) {
        text += content;
        show(box, content, 'content', routed[routed.length - 1]);
      }
      const seconds = (performance.now() - started) / 1000;
      if (tokens > 1) status.textContent = `${tokens} tokens, ${(tokens / seconds).toFixed(1)} a second`;
    }
    return text;
  }

  async function send() {
    const text = question.value.trim();
    if (!text || running) return;
    question.value = '';
    status.textContent = '';
    conversation.push({role: 'user', content: text});
    bubble('user').textContent = text;
    const box = bubble('assistant');
    board.reset();
    running = new AbortController();
    element('send').hidden = true;
    element('stop').hidden = false;
    try {
      const reply = await answer(box, running.signal);
      conversation.push({role: 'assistant', content: reply});
    } catch (fault) {
      if (fault.name === 'AbortError') {
        conversation.push({role: 'assistant', content: box.textContent});
        status.textContent = 'stopped';
      } else {
        conversation.pop();
        bubble('error').textContent = fault.message;
        if (fault instanceof KeyWanted) start();
      }
    }
    if (ranks > 1) await loadRanks().catch(() => {});
    running = null;
    box.dataset.done = 'true';
    element('send').hidden = false;
    element('stop').hidden = true;
    question.focus();
  }

  element('ask').addEventListener('submit', event => { event.preventDefault(); send(); });
  element('stop').addEventListener('click', () => running && running.abort());
  question.addEventListener('keydown', event => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });

  // While the engine loads, the page asks again.
  async function start() {
    for (;;) {
      try {
        await loadInfo();
        status.textContent = '';
        question.focus();
        return;
      } catch (fault) {
        if (fault instanceof KeyWanted) {
          await askForKey(fault.message);
          continue;
        }
        status.textContent = 'the engine is not ready yet …';
        await new Promise(resolve => setTimeout(resolve, 1000));
      }
    }
  }
  start();
})();
