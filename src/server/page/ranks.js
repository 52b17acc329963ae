// The ranks: where each runs, what it holds, how much its experts have done, how tokens travel between them.
// Hidden where one process serves alone.
//   showRanks(topology);      // of GET /v1/rota/topology
'use strict';

const showRanks = (() => {
  const element = id => document.getElementById(id);

  // [0, 1, 2, 3, 8] as "0–3, 8".
  function spans(ids) {
    const out = [];
    for (let i = 0; i < ids.length;) {
      let j = i;
      while (j + 1 < ids.length && ids[j + 1] === ids[j] + 1) ++j;
      out.push(j > i ? `${ids[i]}–${ids[j]}` : `${ids[i]}`);
      i = j + 1;
    }
    return out.join(', ') || 'none';
  }

  function bytes(count) {
    for (const unit of ['bytes', 'kB', 'MB']) {
      if (count < 1000) return `${count < 10 ? count.toFixed(1) : Math.round(count)} ${unit}`;
      count /= 1000;
    }
    return `${count.toFixed(1)} GB`;
  }

  function made(tag, ...inside) {
    const it = document.createElement(tag);
    it.append(...inside);
    return it;
  }

  // Where experts move, layers differ.
  function holding(rank) {
    if (!rank.experts_of_layers) return `experts ${spans(rank.experts)}`;
    return `experts ${spans(rank.experts_of_layers[board.layer] || [])} in layer ${board.layer}`;
  }

  function homesOf(topology) {
    const [first] = topology.ranks;
    const layers = first.experts_of_layers ? first.experts_of_layers.length : board.layers;
    return Array.from({length: layers}, (_, layer) => topology.ranks.map(
        rank => rank.experts_of_layers ? rank.experts_of_layers[layer] : rank.experts));
  }

  // work: of all ranks' experts so far; nothing where every rank holds a part of each expert.
  function card(rank, work) {
    const colour = board.rankColour(rank.rank);
    const where = rank.cpus.length ? `CPU ${spans(rank.cpus)}` : `${rank.threads} thread${rank.threads > 1 ? 's' : ''}`;
    const holds = work ? holding(rank) : 'a part of each expert';
    const item = made('li', made('strong', `rank ${rank.rank}`), ` on ${rank.host}, ${where}: ${holds}`);
    item.style.borderColor = colour;
    if (!work || !work.all) return item;
    const bar = made('div', made('span'));
    bar.className = 'work';
    bar.firstChild.style.background = colour;
    bar.firstChild.style.width = `${100 * rank.expert_tokens_served / work.most}%`;
    item.append(bar, `${Math.round(100 * rank.expert_tokens_served / work.all)} % of the work`);
    return item;
  }

  function workOf(topology) {
    if (!topology.expert_parallel) return null;
    const served = topology.ranks.map(rank => rank.expert_tokens_served ?? 0);
    return {most: Math.max(...served), all: served.reduce((sum, n) => sum + n, 0)};
  }

  function balance(it) {
    if (!it) return '';
    const compared = it.imbalance === null ? '' :
      ` When the ranks last compared their work, the busiest had ${it.imbalance.toFixed(2)} times the average (1 is even).`;
    return `Busy experts are moved, or copied to a second rank: ${it.moves} moves so far.${compared}`;
  }

  return topology => {
    const dealt = topology.expert_parallel;
    element('ranks').hidden = topology.ranks.length < 2;
    if (element('ranks').hidden) return;
    const hosts = new Set(topology.ranks.map(rank => rank.host)).size;
    const travelled = topology.payload_bytes_a_token;
    element('rank-summary').textContent = `${topology.ranks.length} ranks on ${hosts} host${hosts > 1 ? 's' : ''}. ` +
      (dealt ? 'An expert\u2019s ring has the colour of the rank it lives on; ' : '') +
      `tokens travel by ${topology.transport}` + (travelled ? `, ${bytes(travelled)} for each.` : '.');
    const work = workOf(topology);
    element('rank-list').replaceChildren(...topology.ranks.map(rank => card(rank, work)));
    element('balance').textContent = balance(topology.expert_balance);
    board.setHomes(dealt ? homesOf(topology) : []);
  };
})();
