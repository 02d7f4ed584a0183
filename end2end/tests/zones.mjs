// Times are shown in the zone of the browser or in UTC by choice: with the zone, exact in UTC on hover, already in
// the first HTML of a second load, and in fields of a date and a time.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import { ENDED, bearer, inOrg, jobIn, launchBrowser, openPage, settled, signIn, startDemo, waitFor } from './harness.mjs';

const ZONES = ['Europe/Berlin', 'America/St_Johns', 'UTC'];
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];

let demo, browser, job, operator, tenant;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = await signIn(demo.url, demo.operator);
  tenant = await signIn(demo.url, demo.tenant);
  const call = bearer(demo.url, demo.tenant.token);
  const body = { name: `zones-${Date.now()}`, offering: 'h100-80gb.1g.10gb', command: ['true'], max_duration_s: 60 };
  const { id } = await call('POST', `/orgs/${demo.tenant.organization}/jobs`, body);
  job = await jobIn(call, demo.tenant.organization, id, ENDED);
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const jobPath = () => inOrg(demo.tenant.slug, `/jobs/${job.id}`);
const zoneSelect = (page) => page.getByLabel('Time zone', { exact: true }).and(page.locator(':visible'));
const awake = (element) => element.and(element.page().locator(':enabled')).waitFor();

/** `2026-11-22 09:05 UTC+1`: an instant as the pages write it, by the zones of this program. */
function stamp(at, timeZone) {
  const date = new Date(at);
  const day = date.toLocaleDateString('sv-SE', { timeZone });
  const clock = date.toLocaleTimeString('en-GB', { timeZone, hour: '2-digit', minute: '2-digit' });
  const parts = new Intl.DateTimeFormat('en-US', { timeZone, timeZoneName: 'shortOffset' }).formatToParts(date);
  const offset = parts.find(({ type }) => type === 'timeZoneName').value.replace('GMT', 'UTC').replace('UTC+0', 'UTC').replace('-', '−');
  return `${day} ${clock} ${offset}`;
}

/** The exact and the shown times of the table. */
const times = (page) => page.locator('main td time').evaluateAll((all) =>
  all.map((one) => ({ exact: one.dateTime, title: one.title, text: one.textContent })));

/** Waits until all times of the table are in a zone. */
async function allIn(page, timeZone) {
  await waitFor(`times in ${timeZone}`, async () => {
    const shown = await times(page);
    return shown.length > 0 && shown.every(({ exact, text }) => text === stamp(exact, timeZone));
  });
  for (const { exact, title } of await times(page)) {
    assert.equal(title, exact);
    assert.match(exact, /Z$/);
  }
}

test('a job, the list of jobs and the audit have times in the zone of the browser', async () => {
  for (const timezoneId of ZONES) {
    const { page, faults, close } = await openPage(browser, demo.url, { headers: tenant, timezoneId, viewport: SIZES[0] });
    await page.goto(jobPath());
    const submitted = page.locator(`time[datetime="${job.created_at}"]`).filter({ hasText: stamp(job.created_at, timezoneId) });
    await submitted.first().waitFor({ state: 'attached' });
    assert.equal(await submitted.first().getAttribute('title'), job.created_at);
    const steps = page.getByRole('list', { name: 'States of this job' });
    const offset = stamp(job.created_at, timezoneId).split(' ')[2];
    await steps.getByText(new RegExp(`^\\d\\d:\\d\\d:\\d\\d ${offset.replace('+', '\\+')}$`)).first().waitFor();
    await page.goto(inOrg(demo.tenant.slug, '/jobs'));
    await allIn(page, timezoneId);
    assert.deepEqual(faults, []);
    await close();
    const view = await openPage(browser, demo.url, { headers: operator, timezoneId, viewport: SIZES[0] });
    await view.page.goto('/operator/audit');
    await allIn(view.page, timezoneId);
    assert.deepEqual(view.faults, []);
    await view.close();
  }
});

test('the first HTML of a second load has local times, and hydration changes none', async () => {
  const timezoneId = 'America/St_Johns';
  const { page, faults, close } = await openPage(browser, demo.url, { headers: tenant, timezoneId, viewport: SIZES[0] });
  const text = stamp(job.created_at, timezoneId);
  const first = await page.goto(jobPath());
  assert.ok((await first.text()).includes(stamp(job.created_at, 'UTC')), 'the portal does not know the zone yet');
  await page.locator('time').filter({ hasText: text }).first().waitFor({ state: 'attached' });
  await page.addInitScript(() => {
    window.changedTimes = [];
    new MutationObserver((changes) => {
      for (const { target } of changes) {
        if (target.parentElement?.closest('time')) window.changedTimes.push(target.data);
      }
    }).observe(document, { characterData: true, subtree: true });
  });
  const second = await page.reload();
  assert.ok((await second.text()).includes(text), text);
  await awake(zoneSelect(page));
  assert.deepEqual(await page.evaluate(() => window.changedTimes), []);
  assert.deepEqual(faults, []);
  await close();
});

test('the choice of UTC changes all times and stays, at both widths', async () => {
  const timezoneId = 'America/St_Johns';
  for (const viewport of SIZES) {
    const { page, faults, close } = await openPage(browser, demo.url, { headers: tenant, timezoneId, viewport });
    await page.goto(inOrg(demo.tenant.slug, '/jobs'));
    await allIn(page, timezoneId);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(wide <= 0, `${wide} px too wide at ${viewport.width}`);
    const openSheet = () => (viewport.width < 960 ? page.locator('.rail__more > summary').click() : null);
    await openSheet();
    await awake(zoneSelect(page));
    assert.equal(await zoneSelect(page).inputValue(), 'local');
    assert.deepEqual(await axeFindings(page), []);
    await zoneSelect(page).selectOption('utc');
    await allIn(page, 'UTC');
    const answer = await page.reload();
    assert.match(await answer.text(), /<html[^>]* data-zone="utc"/);
    await settled(page);
    await allIn(page, 'UTC');
    await openSheet();
    await awake(zoneSelect(page));
    assert.equal(await zoneSelect(page).inputValue(), 'utc');
    await zoneSelect(page).selectOption('local');
    await allIn(page, timezoneId);
    assert.deepEqual(faults, []);
    await close();
  }
});

test('a field of a time names its zone, refuses a skipped time and keeps its instant in another zone', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, {
    headers: operator, timezoneId: 'Europe/Berlin', viewport: SIZES[0],
  });
  const lastSunday = (year, month) => {
    const day = new Date(Date.UTC(year, month + 1, 0));
    day.setUTCDate(day.getUTCDate() - day.getUTCDay());
    return day.toISOString().slice(0, 10);
  };
  const year = new Date().getUTCFullYear() + 1;
  await page.goto('/operator/reservations');
  await settled(page);
  const plan = page.getByRole('button', { name: 'Plan maintenance', exact: true });
  await awake(plan);
  const start = page.getByLabel('Start, Europe/Berlin');
  await start.fill(`${lastSunday(year, 2)}T02:30`);
  await plan.click();
  await page.locator('#maintain-begin-error').getByText(/skip this time/).waitFor();
  await start.fill(`${lastSunday(year, 9)}T02:30`);
  await page.locator('#maintain-begin-remark').getByText(/\(UTC\+2\)/).waitFor();
  await start.fill(`${year}-07-10T10:00`);
  await page.locator('#maintain-begin-remark').waitFor({ state: 'detached' });
  await zoneSelect(page).selectOption('utc');
  const inUtc = page.getByLabel('Start, UTC');
  await waitFor('the start in UTC', async () => (await inUtc.inputValue()) === `${year}-07-10T08:00`);
  assert.deepEqual(faults, []);
  await close();
});
