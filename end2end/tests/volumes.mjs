// Volumes as people use them: made, filled with files that survive a lost connection, fetched, named in a
// job, deleted.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { inOrg, launchBrowser, openPage, settled, signUp, startDemo, waitFor } from './harness.mjs';

let demo, browser;
before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const hash = (data) => createHash('sha256').update(data).digest('hex');

// Three parts, no two of them alike.
const DATA = Buffer.alloc(9 << 20);
for (let at = 0; at < DATA.length; at += 4) DATA.writeUInt32LE(at, at);

test('a volume is made, filled over a lost connection, fetched and deleted', async () => {
  const owner = await signUp(demo.url);
  const { page, faults } = await openPage(browser, demo.url, { headers: owner.headers });
  await page.goto(inOrg(owner.slug, '/volumes'));
  await settled(page);
  await page.getByText('No volumes yet.').waitFor();
  const create = page.getByRole('button', { name: 'Create volume' });
  await awake(create);
  await page.getByRole('textbox', { name: 'Name' }).fill('Training');
  await create.click();
  await page.locator('#volume-name[aria-invalid="true"]').waitFor();
  await page.getByRole('textbox', { name: 'Name' }).fill('training');
  await page.getByLabel('Maximum size (GiB)').fill('1');
  await create.click();
  await page.getByRole('link', { name: 'training' }).click();
  await page.getByText('No files in this directory.').waitFor();
  const input = page.getByLabel('Files', { exact: true });
  await awake(input);
  faults.length = 0;

  // The second part is lost, as when a train goes into a tunnel.
  let parts = 0;
  await page.route('**/uploads/**', (route) => {
    if (route.request().method() === 'PATCH' && ++parts === 2) return route.abort('connectionreset');
    return route.continue();
  });
  await input.setInputFiles({ name: 'set one.bin', mimeType: 'application/octet-stream', buffer: DATA });
  await page.getByText('9.0 MiB, complete').waitFor();
  assert.ok(parts >= 4, `one part was sent again, not all: ${parts}`);
  assert.equal(parts, 4);
  const progress = page.getByRole('progressbar', { name: 'Upload of set one.bin' });
  assert.equal(await progress.getAttribute('value'), '100');
  await page.unroute('**/uploads/**');
  const row = page.getByRole('table', { name: 'Files in this directory' }).getByRole('row');
  const file = row.filter({ hasText: 'set one.bin' });
  await file.getByText('9.0 MiB').waitFor();
  await page.getByText('version 1').waitFor();
  assert.deepEqual(faults.filter((fault) => !fault.includes('ERR_CONNECTION_RESET')), []);

  const coming = page.waitForEvent('download');
  await page.getByRole('link', { name: 'Download set one.bin' }).click();
  const download = await coming;
  assert.equal(download.suggestedFilename(), 'set one.bin');
  assert.equal(hash(readFileSync(await download.path())), hash(DATA));

  // A directory that a script made is shown too, and gone into.
  const volume = `/orgs/${owner.org}/volumes/training`;
  await owner.api('PUT', `${volume}/uploads/deep/er/empty`, { bytes: 0 });
  await page.reload();
  await settled(page);
  await page.getByRole('link', { name: 'deep/' }).click();
  await page.getByRole('link', { name: 'er/' }).click();
  await page.getByText('empty', { exact: true }).waitFor();
  const crumbs = page.getByRole('navigation', { name: 'Breadcrumb' });
  await crumbs.getByRole('link', { name: 'deep' }).waitFor();

  const drop = page.getByRole('button', { name: 'Delete empty' });
  await awake(drop);
  await drop.click();
  await page.getByRole('button', { name: 'Keep file' }).click();
  await drop.click();
  await page.getByRole('button', { name: 'Delete file' }).click();
  await page.getByText('No files in this directory.').waitFor();

  await page.goto(inOrg(owner.slug, '/volumes'));
  await settled(page);
  const remove = page.getByRole('button', { name: 'Delete training' });
  await awake(remove);
  await remove.click();
  await page.getByRole('button', { name: 'Delete volume' }).click();
  await page.getByText('No volumes yet.').waitFor();
});

test('a file that changes during its upload is refused, and the next file follows', async () => {
  const owner = await signUp(demo.url);
  await owner.api('POST', `/orgs/${owner.org}/volumes`, { name: 'logs', max_bytes: 1 << 30 });
  const dir = mkdtempSync(join(tmpdir(), 'berth-upload-'));
  try {
    const [growing, next] = [join(dir, 'growing.log'), join(dir, 'next.txt')];
    writeFileSync(growing, DATA);
    writeFileSync(next, 'next');
    // A browser compares the times of the last change in seconds.
    utimesSync(growing, 1_700_000_000, 1_700_000_000);
    const { page } = await openPage(browser, demo.url, { headers: owner.headers });
    let parts = 0;
    await page.route('**/uploads/growing.log', (route) => {
      if (route.request().method() === 'PATCH' && ++parts === 2) appendFileSync(growing, 'more');
      return route.continue();
    });
    await page.goto(inOrg(owner.slug, '/volumes/logs'));
    await settled(page);
    const input = page.getByLabel('Files', { exact: true });
    await awake(input);
    await input.setInputFiles([growing, next]);
    await page.getByText('The file was changed, moved or deleted during the upload. Select it again.').waitFor();
    await page.getByText('4 bytes, complete').waitFor();
    // The received part stays until the file is selected again, or until its removal.
    const open = page.getByRole('table', { name: 'Unfinished uploads' });
    await open.getByRole('row').filter({ hasText: 'growing.log' }).getByText('of 9.0 MiB').waitFor();
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

test('a folder keeps its directories, and a refused file stops no other', async () => {
  const owner = await signUp(demo.url);
  const volume = `/orgs/${owner.org}/volumes/sets`;
  await owner.api('POST', `/orgs/${owner.org}/volumes`, { name: 'sets', max_bytes: 1 << 20 });
  const dir = mkdtempSync(join(tmpdir(), 'berth-folder-'));
  try {
    const photos = join(dir, 'photos');
    // A path of a volume has at most 64 parts.
    const deep = join(photos, ...Array(64).fill('d'));
    mkdirSync(deep, { recursive: true });
    mkdirSync(join(photos, 'day one', 'raw'), { recursive: true });
    writeFileSync(join(deep, 'far.txt'), 'far');
    writeFileSync(join(photos, 'list.txt'), 'list');
    writeFileSync(join(photos, 'day one', 'raw', 'a b.bin'), 'ab');
    const { page } = await openPage(browser, demo.url, { headers: owner.headers });
    await page.goto(inOrg(owner.slug, '/volumes/sets?dir=in'));
    await settled(page);
    const input = page.getByLabel('Upload folder', { exact: true });
    await awake(input);
    const empty = page.getByText('No file selected.');
    // Browsers have this event after a folder without files, and after a closed dialog.
    await input.dispatchEvent('cancel');
    await empty.waitFor();

    await input.setInputFiles(photos);
    await page.getByText('4 bytes, complete').waitFor();
    await page.getByText('2 bytes, complete').waitFor();
    await page.getByText('A path has at most 64 parts.').waitFor();
    assert.equal(await empty.count(), 0);
    const uploads = page.getByRole('list', { name: 'Uploads' }).getByRole('listitem');
    assert.equal(await uploads.count(), 3);
    await page.getByRole('progressbar', { name: 'Upload of in/photos/day one/raw/a b.bin' }).waitFor();
    const files = await owner.api('GET', `${volume}/files?dir=in/photos/day%20one/raw`);
    assert.deepEqual(files.items.map((file) => [file.path, file.bytes]), [['in/photos/day one/raw/a b.bin', 2]]);
    await page.getByRole('link', { name: 'photos/' }).click();
    await page.getByText('list.txt', { exact: true }).waitFor();
    await page.getByRole('link', { name: 'day one/' }).waitFor();
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});

test('an unfinished upload is listed and removed, and a running one is cancelled', async () => {
  const owner = await signUp(demo.url);
  const volume = `/orgs/${owner.org}/volumes/small`;
  await owner.api('POST', `/orgs/${owner.org}/volumes`, { name: 'small', max_bytes: 10 << 20 });
  await owner.api('PUT', `${volume}/uploads/left.bin`, { bytes: 8 << 20 });
  const { page } = await openPage(browser, demo.url, { headers: owner.headers });
  await page.goto(inOrg(owner.slug, '/volumes/small'));
  await settled(page);
  const open = page.getByRole('table', { name: 'Unfinished uploads' });
  await open.getByText('0 bytes of 8.0 MiB').waitFor();
  const input = page.getByLabel('Files', { exact: true });
  await awake(input);
  const set = { name: 'set.bin', mimeType: 'application/octet-stream', buffer: DATA };
  await input.setInputFiles(set);
  await page.getByText(/belong to 1 unfinished upload \(left\.bin\)/).waitFor();
  const remove = page.getByRole('button', { name: 'Remove left.bin' });
  await remove.click();
  await page.getByRole('button', { name: 'Keep upload' }).click();
  await remove.click();
  await page.getByRole('button', { name: 'Remove upload' }).click();
  await open.waitFor({ state: 'detached' });

  // The second part is on its way when the user cancels.
  let release;
  const released = new Promise((resolve) => { release = resolve; });
  let parts = 0;
  await page.route('**/uploads/set.bin', async (route) => {
    if (route.request().method() === 'PATCH' && ++parts === 2) await released;
    return route.continue();
  });
  await input.setInputFiles(set);
  await waitFor('the second part', () => parts === 2);
  await page.getByRole('button', { name: 'Cancel the upload of set.bin' }).click();
  await page.getByText('Cancelling.', { exact: true }).waitFor();
  release();
  await page.getByText('Cancelled.', { exact: true }).waitFor();
  assert.equal((await owner.api('GET', volume)).unfinished_uploads, undefined);
  assert.equal(await open.count(), 0);
});

test('the launch form offers volumes, jobs and pasted variables, on a phone too', async () => {
  const owner = await signUp(demo.url);
  await owner.api('POST', `/orgs/${owner.org}/volumes`, { name: 'training', max_bytes: 1000 });
  const { page } = await openPage(browser, demo.url, {
    headers: owner.headers,
    viewport: { width: 390, height: 844 },
  });
  await page.goto(inOrg(owner.slug, '/launch'));
  await awake(page.getByRole('button', { name: 'Launch job' }));
  await page.getByText('Paste as lines', { exact: true }).click();
  const lines = page.getByRole('textbox', { name: 'Variables, one per line' });
  await lines.fill('SEED=7\n\nEPOCHS=4\nnothing');
  await page.getByRole('button', { name: 'Add variables' }).click();
  await page.getByText('Line 4: expected NAME=value.').waitFor();
  await lines.fill('SEED=7\nEPOCHS=4\nSEED=8');
  await page.getByRole('button', { name: 'Add variables' }).click();
  await page.getByText('2 of 256', { exact: true }).waitFor();

  await page.getByText('Secrets, volumes, ports and labels', { exact: true }).click();
  await page.getByRole('button', { name: 'Add secret' }).click();
  await page.getByText('No secrets yet.').waitFor();
  await page.getByRole('button', { name: 'Add volume' }).click();
  const volume = page.getByRole('group', { name: 'Volume 1', exact: true });
  await volume.getByRole('combobox', { name: 'Volume' }).selectOption('training');
  await volume.getByRole('textbox', { name: 'Path' }).fill('/etc');
  await volume.getByRole('checkbox', { name: 'Writable' }).check();
  // A mistake in the name of a job is beside its row, with what is expected.
  await page.getByRole('button', { name: 'Add job' }).click();
  const dependency = page.getByRole('group', { name: 'Dependency 1', exact: true });
  await dependency.getByRole('combobox', { name: 'Job', exact: true }).fill('no job');
  await page.getByRole('button', { name: 'Launch job' }).click();
  await dependency.getByText(/^Dependency 1, job: Choose a job of the list, or enter a job ID/).waitFor();
  await dependency.getByRole('button', { name: 'Remove' }).click();
  await page.getByText('Copy as curl', { exact: true }).click();
  const body = '"env":{"EPOCHS":"4","SEED":"8"}';
  await page.getByText(body).first().waitFor();
  await page.getByText('"volumes":[{"name":"training","path":"/etc","mode":"rw"}]').first().waitFor();
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 390, `the form is ${wide} px wide`);
  // The portal judges the path: its error names the part of the row.
  await page.getByRole('textbox', { name: 'Name', exact: true }).fill('mounts');
  await page.getByRole('textbox', { name: 'Command', exact: true }).fill('true');
  await page.getByRole('button', { name: 'Launch job' }).click();
  await volume.getByText(/^Volume 1, path: /).waitFor();
});

test('the page of a volume fits a phone', async () => {
  const owner = await signUp(demo.url);
  await owner.api('POST', `/orgs/${owner.org}/volumes`, { name: 'small', max_bytes: 1000 });
  const name = `${'long-'.repeat(20)}name.bin`;
  await owner.api('PUT', `/orgs/${owner.org}/volumes/small/uploads/${name}`, { bytes: 0 });
  const { page } = await openPage(browser, demo.url, {
    headers: owner.headers,
    viewport: { width: 390, height: 844 },
  });
  for (const path of ['/volumes', '/volumes/small']) {
    await page.goto(inOrg(owner.slug, path));
    await settled(page);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 390, `${path} is ${wide} px wide`);
  }
});

test('the retention of ended jobs is chosen after a confirmation', async () => {
  const owner = await signUp(demo.url);
  const { page } = await openPage(browser, demo.url, {
    headers: owner.headers,
    viewport: { width: 390, height: 844 },
  });
  await page.goto(inOrg(owner.slug, '/volumes'));
  await settled(page);
  await page.getByRole('progressbar', { name: /^Storage: 0 % used/ }).waitFor();
  await page.getByText('are removed 365 days after the end of the job').waitFor();
  const days = page.getByLabel('Removal after the end of a job');
  const set = page.getByRole('button', { name: 'Set retention' });
  await awake(set);
  await days.fill('ten');
  await set.click();
  await page.getByText('Enter a whole number of days, such as 30, or nothing.', { exact: true }).waitFor();

  const dialog = page.getByRole('dialog');
  const confirm = dialog.getByRole('button', { name: 'Set retention' });
  await days.fill('366');
  await set.click();
  await confirm.click();
  await dialog.getByText('Enter 1 to 365 days').first().waitFor();
  await dialog.getByRole('button', { name: 'Keep present retention' }).click();
  await days.fill('30');
  await set.click();
  await dialog.getByText('ended more than 30 days ago').waitFor();
  await confirm.click();
  await page.getByText('are removed 30 days after the end of the job').waitFor();
  await page.getByText('Retention set.').waitFor();
  await page.reload();
  await settled(page);
  await page.getByText('are removed 30 days after the end of the job').waitFor();
});
