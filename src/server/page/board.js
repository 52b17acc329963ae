// The board: one token and the experts that serve it. Knows nothing of chat or HTTP.
//   board.setShape({layers, experts, topK}); board.add(token); board.choose(token); board.reset();
//   board.setHomes([[[expert ids], ...for each rank], ...for each layer]);   // where experts live; none: nothing to show
// A token is {text, experts: [[expert ids by falling weight] for each layer]}.
'use strict';

const board = (() => {
  const stage = document.getElementById('stage');
  const layersCanvas = document.getElementById('layers');
  const layerInput = document.getElementById('layer');
  const layerNumber = document.getElementById('layer-number');
  const caption = document.getElementById('caption');
  const calm = window.matchMedia('(prefers-reduced-motion: reduce)').matches;

  let shape = {layers: 0, experts: 0, topK: 0};
  let layer = 0;
  let load = [];      // [layer][expert] tokens served in this answer
  let served = 0;     // tokens of this answer
  let shown = null;   // the token on the stage
  let flights = [];   // dots on their way: {expert, rank, start}
  let homes = [];     // [layer][expert] the ranks it lives on; empty: one process, or a part of each on every rank
  let onLayer = () => {};

  // Neighbouring experts get far-apart hues (the golden angle).
  const hue = expert => (expert * 137.508 + 210) % 360;
  const colour = (expert, alpha = 1) => `hsl(${hue(expert)} 70% 55% / ${alpha})`;
  const rankColour = rank => `hsl(${(rank * 137.508 + 30) % 360} 45% 50%)`;
  const homesOf = expert => (homes[layer] || [])[expert] || [];
  const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function fit(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return {context, width, height};
  }

  // Experts stand in an arc of one or more rows above the token.
  function places(width, height) {
    const rows = Math.max(1, Math.ceil(shape.experts / 32));
    const perRow = Math.ceil(shape.experts / rows);
    const out = [];
    for (let e = 0; e < shape.experts; ++e) {
      const row = Math.floor(e / perRow), column = e % perRow;
      const inRow = Math.min(perRow, shape.experts - row * perRow);
      const across = inRow === 1 ? .5 : column / (inRow - 1);
      const angle = Math.PI * (1 - (.06 + .88 * across));
      const reach = 1 - row * (.62 / rows);
      out.push({
        x: width / 2 + Math.cos(angle) * (width / 2 - 34) * reach,
        y: height - 62 - Math.sin(angle) * (height - 112) * reach,
      });
    }
    return out;
  }

  function drawStage(now) {
    const {context, width, height} = fit(stage);
    const spots = places(width, height);
    const home = {x: width / 2, y: height - 30};
    const most = Math.max(1, ...(load[layer] || [0]));
    const chosen = shown ? shown.experts[layer] || [] : [];
    const size = Math.min(20, Math.max(6, 250 / Math.max(shape.experts, 1) + 5));

    chosen.forEach((e, rank) => {
      context.strokeStyle = colour(e, .75 - .35 * rank / Math.max(1, chosen.length));
      context.lineWidth = 4 - 2.5 * rank / Math.max(1, chosen.length);
      context.beginPath();
      context.moveTo(home.x, home.y);
      context.quadraticCurveTo(home.x, (home.y + spots[e].y) / 2, spots[e].x, spots[e].y);
      context.stroke();
    });
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    spots.forEach((spot, e) => {
      const share = (load[layer] ? load[layer][e] : 0) / most;
      const serves = chosen.includes(e);
      context.beginPath();
      context.arc(spot.x, spot.y, size * (.7 + .5 * share), 0, 2 * Math.PI);
      context.fillStyle = colour(e, serves ? 1 : .16 + .4 * share);
      context.fill();
      // A ring in its rank's colour; of an expert with copies, each has a part of it.
      const ranks = homesOf(e), radius = size * (.7 + .5 * share), part = 2 * Math.PI / ranks.length;
      ranks.forEach((rank, i) => {
        context.beginPath();
        context.arc(spot.x, spot.y, radius, i * part - Math.PI / 2, (i + 1) * part - Math.PI / 2);
        context.strokeStyle = rankColour(rank);
        context.lineWidth = serves ? 3 : 1.5;
        context.stroke();
      });
      if (size > 9) {
        context.fillStyle = serves ? '#fff' : ink('--quiet');
        context.font = `${Math.round(size * .75)}px system-ui, sans-serif`;
        context.fillText(e, spot.x, spot.y + .5);
      }
    });
    flights = flights.filter(flight => now - flight.start < 600);
    for (const flight of flights) {
      const t = Math.min(1, Math.max(0, (now - flight.start) / 600)), u = 1 - t, to = spots[flight.expert];
      const x = u * u * home.x + 2 * u * t * home.x + t * t * to.x;
      const y = u * u * home.y + u * t * (home.y + to.y) + t * t * to.y;
      context.beginPath();
      context.arc(x, y, 5, 0, 2 * Math.PI);
      context.fillStyle = colour(flight.expert);
      context.fill();
    }
    const text = shown ? (shown.text.trim() || JSON.stringify(shown.text).slice(1, -1)) : '';
    context.font = '600 17px system-ui, sans-serif';
    const label = text.length > 28 ? text.slice(0, 27) + '…' : text || '·';
    const half = context.measureText(label).width / 2 + 14;
    context.fillStyle = ink('--paper');
    context.strokeStyle = shown && chosen.length ? colour(chosen[0]) : ink('--line');
    context.lineWidth = 2;
    context.beginPath();
    context.roundRect(home.x - half, home.y - 17, 2 * half, 34, 17);
    context.fill();
    context.stroke();
    context.fillStyle = ink('--ink');
    context.fillText(label, home.x, home.y + 1);
  }

  function drawLayers() {
    const {context, width, height} = fit(layersCanvas);
    if (!shape.layers) return;
    const cellWidth = width / shape.experts, cellHeight = height / shape.layers;
    const gap = Math.min(1.5, cellHeight * .15, cellWidth * .15);
    for (let l = 0; l < shape.layers; ++l) {
      const most = Math.max(1, ...load[l]);
      const chosen = shown ? shown.experts[l] || [] : [];
      for (let e = 0; e < shape.experts; ++e) {
        const serves = chosen.includes(e);
        context.fillStyle = colour(e, serves ? 1 : .07 + .3 * load[l][e] / most);
        context.fillRect(e * cellWidth + gap / 2, l * cellHeight + gap / 2, cellWidth - gap, cellHeight - gap);
      }
    }
    context.strokeStyle = ink('--ink');
    context.lineWidth = 1.5;
    context.strokeRect(.75, layer * cellHeight, width - 1.5, cellHeight);
  }

  function describe() {
    const chosen = shown ? shown.experts[layer] || [] : [];
    if (!chosen.length) {
      caption.textContent = shape.experts
        ? `${shape.experts} experts stand by in each of ${shape.layers} layers; ${shape.topK} serve each token.` : '';
      return;
    }
    const all = load[layer].reduce((sum, n) => sum + n, 0);
    const busiest = load[layer].indexOf(Math.max(...load[layer]));
    const called = chosen.map(e => homesOf(e).length ? `${e} (${rankNames(homesOf(e))})` : e).join(', ');
    caption.textContent = `In layer ${layer} this token is served by experts ${called}. ` +
      `Expert ${busiest} is the busiest here: ${Math.round(100 * load[layer][busiest] / Math.max(1, all))} % of ` +
      `${served} tokens' calls.`;
  }

  const rankNames = ranks => `rank${ranks.length > 1 ? 's' : ''} ${ranks.join(' and ')}`;

  let pending = false;
  function draw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(now => {
      pending = false;
      drawStage(now);
      drawLayers();
      describe();
      if (flights.length) draw();
    });
  }

  function setLayer(value) {
    layer = Math.min(Math.max(0, value), Math.max(0, shape.layers - 1));
    layerInput.value = layer;
    layerNumber.textContent = layer;
    onLayer();
    draw();
  }
  layerInput.addEventListener('input', () => setLayer(Number(layerInput.value)));
  layersCanvas.addEventListener('click', event => {
    if (shape.layers) setLayer(Math.floor(event.offsetY / layersCanvas.clientHeight * shape.layers));
  });
  window.addEventListener('resize', draw);

  function reset() {
    load = Array.from({length: shape.layers}, () => new Array(shape.experts).fill(0));
    served = 0;
    shown = null;
    draw();
  }
  return {
    setShape(next) {
      shape = next;
      layerInput.max = Math.max(0, next.layers - 1);
      reset();
      setLayer(Math.floor(next.layers / 2));
    },
    setHomes(layers) {
      homes = layers.map(ranks => {
        const of = [];
        ranks.forEach((held, rank) => held.forEach(e => (of[e] = of[e] || []).push(rank)));
        return of;
      });
      draw();
    },
    get layer() { return layer; },
    get layers() { return shape.layers; },
    rankColour,
    reset,
    add(token) {
      ++served;
      token.experts.forEach((chosen, l) => chosen.forEach(e => { if (load[l]) ++load[l][e]; }));
      this.choose(token);
    },
    choose(token) {
      shown = token;
      const start = performance.now();
      if (!calm) (token.experts[layer] || []).forEach((expert, rank) => flights.push({expert, start: start + 60 * rank}));
      draw();
    },
    // The colour of the expert that leads a token's service in the layer on view.
    tint(token) {
      const chosen = token.experts[layer];
      return chosen && chosen.length ? colour(chosen[0], ink('--glow')) : 'transparent';
    },
    set onLayer(callback) { onLayer = callback; },
  };
})();
