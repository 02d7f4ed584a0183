// Starts one demo, runs every test of end2end/tests against it in turn, and stops it. BERTH_CLOCKED names
// the portal with a clock that tests move; without it that is built here.
// usage: browser-tests.mjs [FILE...]
import { execFileSync, spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
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
const demo = await startDemo();
let code = 1;
try {
  // One at a time: they share the boards.
  // A file that hangs fails after ten minutes.
  const argv = ['--test', '--test-reporter=tap', '--test-concurrency=1', '--test-timeout=600000', ...files];
  const env = { ...process.env, BERTH_DEMO: demo.file, BERTH_CLOCKED: clocked };
  const tests = spawn(process.execPath, argv, { env, stdio: 'inherit' });
  // Ctrl-C reaches the tests too; this process stays to stop the demo.
  process.on('SIGINT', () => {});
  process.on('SIGTERM', () => tests.kill('SIGTERM'));
  code = await new Promise((done) => tests.on('close', (exit) => done(exit ?? 1)));
} finally {
  await demo.stop();
}
process.exitCode = code;
