// Writes .br and .gz beside every file of DIR that shrinks, and DIR/build-id: a short hash of DIR/pkg.
// usage: compress.mjs DIR [release|demo]
import { createHash } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';

const [dir, mode = 'release'] = process.argv.slice(2);
const best = mode === 'release';
const SHRINKS = /\.(wasm|js|css|txt|svg|json)$/;

async function files(folder) {
  const entries = await readdir(folder, { withFileTypes: true });
  const nested = entries.map((e) => (e.isDirectory() ? files(join(folder, e.name)) : [join(folder, e.name)]));
  return (await Promise.all(nested)).flat().sort();
}

async function compress(path) {
  const bytes = await readFile(path);
  const brotli = {
    params: {
      [constants.BROTLI_PARAM_QUALITY]: best ? 11 : 3,
      [constants.BROTLI_PARAM_LGWIN]: 22,
      [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length,
    },
  };
  const [br, gz] = await Promise.all([
    promisify(brotliCompress)(bytes, brotli),
    promisify(gzip)(bytes, { level: best ? 9 : 1 }),
  ]);
  await Promise.all([writeFile(`${path}.br`, br), writeFile(`${path}.gz`, gz)]);
}

const all = await files(dir);
const hash = createHash('sha256');
for (const path of all.filter((p) => relative(dir, p).startsWith('pkg/'))) {
  hash.update(relative(dir, path)).update('\0').update(await readFile(path)).update('\0');
}
await Promise.all(all.filter((path) => SHRINKS.test(path)).map(compress));
await writeFile(join(dir, 'build-id'), `${hash.digest('hex').slice(0, 12)}\n`);
