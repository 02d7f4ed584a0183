// Jobs launched again, the input of the form over a reload, the badges of live views, and pages that recover when
// the portal is back.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  api, bearer, boardsFree, ENDED, jobIn, launchBrowser, openPage, settled, signUp, startBarePortal, startDemo, waitFor,
} from './harness.mjs';

const SLICE = 'h100-80gb.1g.10gb';

let demo, browser, operator, person, view, page;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  person = await signUp(demo.url);
  await operator('POST', `/operator/orgs/${person.org}/credits`, { amount_micros: 20_000_000, memo: 'Welcome' });
  view = await openPage(browser, demo.url, { headers: person.headers, viewport: { width: 1440, height: 900 } });
  page = view.page;
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const jobs = () => `/orgs/${person.org}/jobs`;
const submit = (body) => person.api('POST', jobs(), { offering: SLICE, max_duration_s: 300, ...body });
const cancel = (job) => person.api('POST', `${jobs()}/${job}/cancel`);
const textbox = (name) => page.getByRole('textbox', { name, exact: true });
const awake = (button) => button.and(page.locator(':enabled')).waitFor();
const launchButton = () => page.getByRole('button', { name: 'Launch job' });
const badge = (text) => page.locator('.crumb-row').getByText(text, { exact: true });
/** The drafts in the storage of the tab, as one text. */
const drafts = () => page.evaluate(() =>
  Object.keys(sessionStorage).filter((key) => key.startsWith('berth.draft.')).map((key) => sessionStorage[key]).join('\n'));

test('a queued job is live until its end, and then finished', async () => {
  const first = await submit({ name: 'holds', command: ['sleep', '200'] });
  const queued = await submit({ name: 'waits', command: ['true'], depends_on: [{ job: first.id }] });
  await page.goto(`/jobs/${queued.id}`);
  await badge('live').waitFor();
  await cancel(queued.id);
  await page.locator('.page__head').getByText(/cancelled/i).first().waitFor();
  await badge('finished').waitFor();
  await page.reload();
  await badge('finished').waitFor();
  await page.goto('/jobs');
  await page.locator('.section__aside').getByText('live', { exact: true }).waitFor();
  await cancel(first.id);
  await jobIn(person.api, person.org, first.id, ENDED);
});

test('a log without output is small and says so', async () => {
  const job = await submit({ name: 'silent', command: ['sh', '-c', 'sleep 200'] });
  await jobIn(person.api, person.org, job.id, ['running']);
  await page.goto(`/jobs/${job.id}`);
  const log = page.getByRole('log').first();
  await log.getByText('No output yet.').waitFor();
  assert.ok((await log.boundingBox()).height < 100);
  await cancel(job.id);
  await log.getByText('The job never wrote any output.').waitFor();
  await jobIn(person.api, person.org, job.id, ENDED);
});

test('a hidden page has no stream, and continues when it is shown', async () => {
  const first = await submit({ name: 'holds-again', command: ['sleep', '200'] });
  const queued = await submit({ name: 'waits-again', command: ['true'], depends_on: [{ job: first.id }] });
  await page.goto(`/jobs/${queued.id}`);
  await badge('live').waitFor();
  const hide = (hidden) => page.evaluate((value) =>
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => value }), hidden);
  const ofJob = (request) => request.url().includes(`${queued.id}/events`);
  const closed = page.waitForEvent('requestfailed', ofJob);
  await hide(true);
  await closed;
  const opened = page.waitForRequest(ofJob);
  await hide(false);
  assert.match((await opened).url(), /after=[1-9]/);
  await badge('live').waitFor();
  await cancel(queued.id);
  await cancel(first.id);
  await jobIn(person.api, person.org, first.id, ENDED);
});

test('a job is launched again from its page with all of its submission', async () => {
  const made = await submit({
    name: 'again', script: 'echo "$LR"; cat a.txt', env: { LR: '0.1' }, files: { 'a.txt': 'text' },
    labels: { project: 'ocr' }, artifacts: ['out/**'], max_duration_s: 5_400,
  });
  await jobIn(person.api, person.org, made.id, ['succeeded']);
  await page.goto('/jobs?ended=true&name=AGAIN');
  await page.getByRole('row').filter({ hasText: made.id }).getByRole('link', { name: 'Launch again' }).waitFor();
  await page.goto(`/jobs/${made.id}`);
  await settled(page);
  await page.getByRole('link', { name: 'Launch again' }).click();
  await page.waitForURL(/\/launch\?from=job_/);
  await page.getByText('Filled from the submission of again.').waitFor();
  await awake(launchButton());
  assert.equal(await textbox('Name').inputValue(), 'again');
  assert.equal(await textbox('Script').inputValue(), 'echo "$LR"; cat a.txt');
  assert.equal(await page.getByLabel('Time limit', { exact: true }).inputValue(), '90');
  assert.equal(await page.getByLabel('Unit', { exact: true }).inputValue(), 'minutes');
  // A section with input is open, another one is closed.
  assert.equal(await textbox('Artifacts').inputValue(), 'out/**');
  assert.equal(await textbox('Offline tolerance').isVisible(), false);
  await textbox('Name').fill('again-2');
  await launchButton().click();
  await page.waitForURL(/\/jobs\/job_/);
  const [second] = /job_[0-9a-z]+/.exec(page.url());
  assert.notEqual(second, made.id);
  const [before_, after_] = [
    await person.api('GET', `${jobs()}/${made.id}/submission`),
    await person.api('GET', `${jobs()}/${second}/submission`),
  ];
  assert.deepEqual(after_, { ...before_, name: 'again-2' });
  await jobIn(person.api, person.org, second, ENDED);
});

test('a submission that is not known leaves the form empty and says so', async () => {
  await page.goto('/launch?from=job_00000000000000000000000000');
  await page.getByText('The submission of this job cannot be read; the form is empty.').waitFor();
  assert.equal(await textbox('Name').inputValue(), '');
});

test('the input of the form survives a reload until the launch', async () => {
  await page.goto('/launch');
  await awake(launchButton());
  assert.ok(await page.getByRole('button', { name: 'Blank form' }).isDisabled());
  await textbox('Name').fill('draft-1');
  await textbox('Command').fill('echo hi');
  await page.getByLabel('Unit', { exact: true }).selectOption('minutes');
  await waitFor('the draft to be stored', async () => {
    const text = await drafts();
    return text.includes('draft-1') && text.includes('echo hi') && text.includes('Minutes');
  });
  await page.reload();
  await page.getByText('Restored the input of this browser tab.').waitFor();
  await waitFor('the name', async () => (await textbox('Name').inputValue()) === 'draft-1');
  assert.equal(await textbox('Command').inputValue(), 'echo hi');
  assert.equal(await page.getByLabel('Unit', { exact: true }).inputValue(), 'minutes');
  // The last change needs no pause before a reload.
  await textbox('Name').fill('draft-0');
  await page.reload();
  await page.getByText('Restored the input of this browser tab.').waitFor();
  await waitFor('the last name', async () => (await textbox('Name').inputValue()) === 'draft-0');
  await textbox('Name').fill('draft-1');
  // Another address has another first input.
  await page.goto('/launch?from=job_00000000000000000000000000');
  await awake(launchButton());
  assert.equal(await textbox('Name').inputValue(), '');
  await page.goto('/launch');
  await waitFor('the name again', async () => (await textbox('Name').inputValue()) === 'draft-1');

  await page.getByRole('button', { name: 'Blank form' }).click();
  await waitFor('the empty name', async () => (await textbox('Name').inputValue()) === '');
  await waitFor('the empty storage', async () => (await drafts()) === '');
  await page.getByRole('button', { name: 'Undo' }).click();
  await waitFor('the name after the undo', async () => (await textbox('Name').inputValue()) === 'draft-1');
  await waitFor('the stored draft', async () => (await drafts()).includes('draft-1'));

  await launchButton().click();
  await page.waitForURL(/\/jobs\/job_/);
  assert.equal(await drafts(), '');
  const [job] = /job_[0-9a-z]+/.exec(page.url());
  await jobIn(person.api, person.org, job, ENDED);
});

test('a list of jobs is filtered by its address and its form', async () => {
  await page.goto('/jobs');
  await settled(page);
  await page.getByRole('radio', { name: 'ended', exact: true }).check();
  await page.waitForURL(/ended=true/);
  await textbox('Name').fill('draft');
  await page.getByRole('button', { name: 'Apply filter' }).click();
  await page.waitForURL(/ended=true&name=draft/);
  await waitFor('one job', async () => (await page.locator('tbody tr').count()) === 1);
  await page.getByRole('row').filter({ hasText: 'draft-1' }).waitFor();
  await page.getByLabel('Label', { exact: true }).fill('project=none');
  await page.getByRole('button', { name: 'Apply filter' }).click();
  await page.getByText('No jobs match: ended, name with “draft”, label “project=none”.').waitFor();
  await page.locator('.empty').getByRole('link', { name: 'Clear filters' }).click();
  await page.waitForURL((url) => url.search === '');
  await page.locator('#jobs-order').selectOption('asc');
  await page.waitForURL(/sort=asc/);
  await page.locator('tbody tr').first().filter({ hasText: 'holds' }).waitFor();
});

test('nothing went wrong in the browser on the way', async () => {
  await boardsFree(operator);
  // The submission of the unknown job.
  assert.deepEqual(view.faults.filter((fault) => !fault.includes('job_00000000000000000000000000')), []);
});

test('pages recover when the portal is back, and the session stays', async () => {
  const portal = await startBarePortal();
  try {
    const setup = { token: portal.token, email: 'harbour@example.org', password: 'lantern quay seven drizzle', name: 'Harbour' };
    await api(portal.url, {})('POST', '/setup', setup);
    const someone = await signUp(portal.url);
    const other = await openPage(browser, portal.url, { headers: someone.headers });
    // The code of both pages is loaded.
    await other.page.goto('/');
    await settled(other.page);
    await other.page.getByRole('link', { name: 'Jobs', exact: true }).first().click();
    await other.page.getByRole('heading', { level: 1, name: 'Jobs' }).waitFor();
    await other.page.getByText('No jobs yet.').waitFor();

    await portal.halt();
    await other.page.getByRole('link', { name: 'Home', exact: true }).first().click();
    await other.page.getByText('Portal not reachable').waitFor();
    await other.page.locator('button:enabled', { hasText: 'Try again' }).waitFor();
    await portal.resume();
    await other.page.getByText('No jobs yet.').waitFor({ timeout: 60_000 });

    // The code of this page is not loaded yet.
    await portal.halt();
    await other.page.getByRole('link', { name: 'Team', exact: true }).first().click();
    await other.page.getByText('This page did not load').waitFor();
    await portal.resume();
    await other.page.getByRole('heading', { level: 1, name: 'Team' }).waitFor({ timeout: 60_000 });
    await other.page.getByText(someone.name).first().waitFor();
    await other.close();
  } finally {
    await portal.stop();
  }
});
