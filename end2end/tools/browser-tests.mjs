// Runs every test of end2end/tests against two demos side by side, and stops them. BERTH_CLOCKED names the portal with a
// clock that tests move; without it that is built here.
// usage: browser-tests.mjs [FILE...]
import { execFileSync, spawn } from 'node:child_process';
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, startDemo } from '../tests/harness.mjs';

const folder = join(ROOT, 'end2end/tests');
const named = process.argv.slice(2);
// What tests use, and what is none by itself.
const HELPERS = ['checks.mjs', 'harness.mjs', 'stripe.mjs'];
// By name: what a folder means to `node --test` differs between versions of node.
const files = named.length
  ? named
  : readdirSync(folder).filter((f) => f.endsWith('.mjs') && !HELPERS.includes(f)).sort().map((f) => join(folder, f));

let clocked = process.env.BERTH_CLOCKED;
if (!clocked) {
  const argv = ['build', '--quiet', '-p', 'berth-server', '--example', 'clocked'];
  execFileSync('cargo', argv, { cwd: ROOT, stdio: 'inherit' });
  clocked = join(ROOT, 'target/debug/examples/clocked');
}

// Files that no demo has begun yet, the long ones first: a short one at the end leaves no demo alone for long.
const size = (file) => statSync(file).size;
const waiting = named.length ? [...files] : [...files].sort((a, b) => size(b) - size(a));

// Runs waiting files against a demo of its own, one after the other, because they share its boards.
async function run() {
  const demo = await startDemo();
  let code = 0;
  try {
    const env = { ...process.env, BERTH_DEMO: demo.file, BERTH_CLOCKED: clocked };
    for (let file = waiting.shift(); file && !stopped; file = waiting.shift()) {
      // A file that hangs fails after twenty minutes.
      const argv = ['--test', '--test-reporter=tap', '--test-timeout=1200000', file];
      const tests = spawn(process.execPath, argv, { env, stdio: 'inherit' });
      const stop = () => tests.kill('SIGTERM');
      process.on('SIGTERM', stop);
      const exit = await new Promise((done) => tests.on('close', (exit) => done(exit ?? 1)));
      process.off('SIGTERM', stop);
      code = Math.max(code, exit);
    }
  } finally {
    await demo.stop();
  }
  return code;
}

// Ctrl-C reaches the tests too; this process stays to stop the demos.
let stopped = false;
process.on('SIGINT', () => { stopped = true; });
process.on('SIGTERM', () => { stopped = true; });
// Two demos side by side: a test waits for the portal, its jobs and the browser by turns.
process.exitCode = Math.max(...(await Promise.all([run(), ...(waiting.length > 1 ? [run()] : [])])));
