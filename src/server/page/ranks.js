// The ranks: where each runs, what it holds, how tokens travel between them. Hidden where one process serves alone.
//   showRanks(topology);      // of GET /v1/rota/topology
'use strict';

const showRanks = (() => {
  const section = document.getElementById('ranks'), list = document.getElementById('rank-list');
  const summary = document.getElementById('rank-summary');

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

  function card(rank, dealt) {
    const item = document.createElement('li');
    item.style.borderColor = board.rankColour(rank.rank);
    const name = document.createElement('strong');
    name.textContent = `rank ${rank.rank}`;
    const where = rank.cpus.length ? `CPU ${spans(rank.cpus)}` : `${rank.threads} thread${rank.threads > 1 ? 's' : ''}`;
    const holds = dealt ? `experts ${spans(rank.experts)}` : 'a part of each expert';
    item.append(name, ` on ${rank.host}, ${where}: ${holds}`);
    return item;
  }

  return topology => {
    const dealt = topology.expert_parallel;
    section.hidden = topology.ranks.length < 2;
    if (section.hidden) return;
    const hosts = new Set(topology.ranks.map(rank => rank.host)).size;
    const travelled = topology.payload_bytes_a_token;
    summary.textContent = `${topology.ranks.length} ranks on ${hosts} host${hosts > 1 ? 's' : ''}. ` +
      (dealt ? 'An expert\u2019s ring has the colour of the rank it lives on; ' : '') +
      `tokens travel by ${topology.transport}` + (travelled ? `, ${bytes(travelled)} for each.` : '.');
    list.replaceChildren(...topology.ranks.map(rank => card(rank, dealt)));
    board.setHomes(dealt ? topology.ranks.map(rank => rank.experts) : []);
  };
})();
