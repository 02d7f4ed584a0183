// Joins the chunks of a split module into few files. A chunk has the code that the same parts need, so forty parts
// have a thousand chunks, and a page would load hundreds of them.
// usage: join_chunks.mjs FOLDER WASM_MERGE
// FOLDER has __wasm_split.js with its modules. The chunks are replaced by shared_*.wasm.
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

/** The parts of the first page of a visitor and of a signed-in user, which wait for all their files. */
const FIRST_PARTS = ['start', 'home'];
const FIRST_WEIGHT = 4;
/** The cost of one more file of a page, as a share of all code of parts: it is worth this much unneeded code. */
const FILE_SHARE = 1 / 250;
/** The name of the main module in joined files. wasm-merge resolves the old one, `__wasm_split`. */
const MAIN = 'main';
const CHUNK = /\/\* [^*]* \*\/\nconst (__chunk_\d+) = makeLoad\([\s\S]*?"\.\/(chunk_\d+)\.wasm"[\s\S]*?\n, \[\]\);\n/g;
const LOADER = /(export const __wasm_split_load_(\w+) = wrapAsyncCb\(makeLoad\([\s\S]*?, )\[([^\]]*)\]\)\);\n/g;
const FEATURES = ['bulk-memory', 'nontrapping-float-to-int', 'sign-ext', 'mutable-globals', 'reference-types', 'multivalue'];

const ones = (bits) => {
  let rest = bits - ((bits >>> 1) & 0x55555555);
  rest = (rest & 0x33333333) + ((rest >>> 2) & 0x33333333);
  return (((rest + (rest >>> 4)) & 0x0f0f0f0f) * 0x01010101) >>> 24;
};

/** A set of parts, by their numbers from 0 to 63. */
function setOf(numbers) {
  const words = [0, 0];
  for (const number of numbers) words[number >> 5] |= 1 << (number & 31);
  return { low: words[0], high: words[1] };
}

/**
 * Joins files (`{low, high, bytes, names}`, the first two as a set of parts) pair by pair, the best pair first, as long
 * as a pair saves something. One more file costs a part as much as `fileBytes` of code that it does not need. The parts
 * of `first` count `FIRST_WEIGHT` times.
 */
function joinFiles(files, fileBytes, first) {
  const weight = (low, high) =>
    ones(low) + ones(high) + (FIRST_WEIGHT - 1) * (ones(low & first.low) + ones(high & first.high));
  const saving = (a, b) => {
    const users = weight(a.low | b.low, a.high | b.high);
    return fileBytes * (a.users + b.users - users) - a.bytes * (users - a.users) - b.bytes * (users - b.users);
  };
  const joined = (a, b) => {
    const [low, high] = [a.low | b.low, a.high | b.high];
    return { low, high, users: weight(low, high), bytes: a.bytes + b.bytes, names: [...a.names, ...b.names] };
  };
  let all = files.map((file) => ({ ...file, users: weight(file.low, file.high) }));
  const compare = (one, other) => {
    const saved = saving(one, other);
    if (saved > one.saved) [one.saved, one.partner] = [saved, other];
  };
  const choose = (one) => {
    [one.saved, one.partner] = [0, null];
    for (const other of all) if (other !== one) compare(one, other);
  };
  all.forEach(choose);
  for (;;) {
    const one = all.reduce((a, b) => (b.saved > a.saved ? b : a), { saved: 0 });
    const other = one.partner;
    if (!other) return all;
    if (other.gone) {
      // Another file has taken the partner: the saving is only an upper limit.
      choose(one);
      continue;
    }
    const both = joined(one, other);
    [one.gone, other.gone] = [true, true];
    all = [...all.filter((file) => !file.gone), both];
    choose(both);
    for (const file of all) if (file !== both) compare(file, both);
  }
}

/** A reader of the numbers of a module, from an offset. */
function numbersFrom(module, offset) {
  const reader = { at: offset, byte: () => module[reader.at++] };
  reader.number = () => {
    let [value, shift] = [0, 0];
    for (;;) {
      const byte = reader.byte();
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
      shift += 7;
    }
  };
  reader.text = () => {
    const length = reader.number();
    reader.at += length;
    return module.toString('utf8', reader.at - length, reader.at);
  };
  return reader;
}

/** The sections of a module: id, start of the content, and all bytes. */
function sectionsOf(module) {
  const [sections, reader] = [[], numbersFrom(module, 8)];
  while (reader.at < module.length) {
    const begin = reader.at;
    const id = reader.byte();
    const length = reader.number();
    sections.push({ id, content: reader.at, bytes: module.subarray(begin, reader.at + length) });
    reader.at += length;
  }
  return sections;
}

/** A module without custom sections: most of them are names of functions. */
const stripped = (module) =>
  Buffer.concat([module.subarray(0, 8), ...sectionsOf(module).filter(({ id }) => id !== 0).map(({ bytes }) => bytes)]);

/** The imports of a module from the main module: names with their kinds and types as text. */
function importsOf(module) {
  const section = sectionsOf(module).find(({ id }) => id === 2);
  if (!section) return [];
  const reader = numbersFrom(module, section.content);
  const limits = () => (reader.number() ? `${reader.number()} ${reader.number()}` : `${reader.number()}`);
  const types = {
    1: () => [(reader.byte(), 'table'), `${limits()} funcref`],
    2: () => ['memory', limits()],
    3: () => {
      const type = reader.byte();
      if (type !== 0x7f) throw new Error(`a chunk imports a global of the type 0x${type.toString(16)}; only i32 (0x7f) can be joined`);
      return ['global', reader.byte() ? '(mut i32)' : 'i32'];
    },
  };
  return Array.from({ length: reader.number() }, () => {
    const [from, name, kind] = [reader.text(), reader.text(), reader.number()];
    if (from !== '__wasm_split') throw new Error(`a chunk imports ${name} from ${from}; only imports from __wasm_split can be joined`);
    if (!types[kind]) throw new Error(`a chunk imports ${name} of the kind ${kind}; only tables (1), memories (2) and globals (3) can be joined`);
    return [name, ...types[kind]()];
  });
}

/** The text of a module that imports the things of the main module once and exports them to the chunks of a file. */
function hub(chunks) {
  const found = new Map(chunks.flatMap((path) => importsOf(readFileSync(path))).map(([name, ...type]) => [name, type]));
  const all = [...found].map(([name, [kind, type]], number) => ({ name, kind, type, id: `$x${number}` }));
  const imports = all.map(({ name, kind, type, id }) => `(import "${MAIN}" "${name}" (${kind} ${id} ${type}))`);
  const exports = all.map(({ name, kind, id }) => `(export "${name}" (${kind} ${id}))`);
  return `(module ${[...imports, ...exports].join('\n')})`;
}

/** Merges chunks into one module, `output`. */
async function mergeChunks(merge, chunks, output) {
  writeFileSync(`${output}.wat`, hub(chunks));
  const features = FEATURES.map((feature) => `--enable-${feature}`);
  const inputs = chunks.flatMap((path, index) => [path, `chunk_${index}`]);
  // Without the optimizing compiler: it takes longer than the merge itself.
  await promisify(execFile)(process.execPath, ['--liftoff-only', merge, ...features, `${output}.wat`, '__wasm_split', ...inputs, '-o', output, '--skip-export-conflicts']);
  writeFileSync(output, stripped(readFileSync(output)));
}

/** The text of a loader of one shared file. */
const shared = (number) => `const __shared_${number} = makeLoad(() => {
    const src = fetch(new URL("./shared_${number}.wasm", import.meta.url));
    src.catch(() => {});
    return async ({ __wasm_split }) => (WebAssembly.instantiateStreaming(src, { ${MAIN}: __wasm_split }));
}
, []);
`;

async function run(folder, merge) {
  for (const name of readdirSync(folder).filter((name) => /^(chunk|split)_\w+\.wasm$/.test(name))) {
    writeFileSync(join(folder, name), stripped(readFileSync(join(folder, name))));
  }
  const path = join(folder, '__wasm_split.js');
  const loader = readFileSync(path, 'utf8');
  const bytes = (name) => readFileSync(join(folder, `${name}.wasm`)).length;
  const names = new Map([...loader.matchAll(CHUNK)].map(([, variable, name]) => [variable, name]));
  const files = readdirSync(folder).filter((name) => /^chunk_\d+\.wasm$/.test(name));
  if (names.size !== files.length) throw new Error(`the loader names ${names.size} chunks of ${files.length}`);
  if (names.size === 0) return;
  const parts = [...loader.matchAll(LOADER)].map(([, , part, list]) => ({ part, chunks: list.split(',').map((v) => v.trim()).filter(Boolean) }));
  if (parts.length > 64) throw new Error(`${parts.length} parts; at most 64 are counted`);
  const users = new Map([...names.keys()].map((variable) => [variable, []]));
  parts.forEach(({ chunks }, number) => chunks.forEach((variable) => users.get(variable).push(number)));
  const chunks = [...users].map(([variable, numbers]) => ({ ...setOf(numbers), bytes: bytes(names.get(variable)), names: [variable] }));
  const first = FIRST_PARTS.map((name) => parts.findIndex(({ part }) => part === name));
  if (first.includes(-1)) throw new Error(`the loader does not have the parts ${FIRST_PARTS.join(', ')}`);
  const own = readdirSync(folder).filter((name) => /^split_\w+\.wasm$/.test(name)).map((name) => bytes(name.slice(0, -5)));
  if (parts.length !== own.length) throw new Error(`${parts.length} loaders of ${own.length} parts: the splitter writes another form of loader`);
  const total = [...own, ...chunks.map((chunk) => chunk.bytes)].reduce((sum, size) => sum + size, 0);
  const found = joinFiles(chunks, total * FILE_SHARE, setOf(first));

  const work = mkdtempSync(join(tmpdir(), 'berth-chunks-'));
  const numberOf = new Map();
  try {
    const waiting = [...found.entries()];
    const oneByOne = async () => {
      for (let next = waiting.shift(); next; next = waiting.shift()) {
        const [number, file] = next;
        const paths = file.names.map((variable) => join(folder, `${names.get(variable)}.wasm`));
        await mergeChunks(merge, paths, join(work, `shared_${number}.wasm`));
        file.names.forEach((variable) => numberOf.set(variable, number));
      }
    };
    await Promise.all(Array.from({ length: availableParallelism() }, oneByOne));
    files.forEach((name) => rmSync(join(folder, name)));
    found.forEach((_, number) => {
      const name = `shared_${number}.wasm`;
      writeFileSync(join(folder, name), readFileSync(join(work, name)));
    });
  } finally {
    rmSync(work, { recursive: true });
  }
  let at = 0;
  const text = loader
    .replace(CHUNK, () => (at++ === 0 ? found.map((_, number) => shared(number)).join('') : ''))
    .replace(LOADER, (_, before, part, list) => {
      const numbers = new Set(list.split(',').map((v) => v.trim()).filter(Boolean).map((variable) => numberOf.get(variable)));
      return `${before}[${[...numbers].sort((a, b) => a - b).map((number) => `__shared_${number}`).join(', ')}]));\n`;
    });
  const rest = /__chunk_\w*|__shared_undefined/.exec(text);
  if (rest) throw new Error(`the joined loader still has ${rest[0]}`);
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
}

const [folder, merge] = process.argv.slice(2);
if (!folder || !merge) {
  console.error('usage: join_chunks.mjs FOLDER WASM_MERGE');
  process.exit(2);
}
await run(folder, merge);
