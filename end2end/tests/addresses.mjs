// Addresses of the pages: each names its organization, and older ones without it lead there.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { inOrg, launchBrowser, openPage, settled, signUp, startDemo, waitFor } from './harness.mjs';

let demo, browser, owner, guest;
before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  owner = await signUp(demo.url, 'Pilot');
  guest = await signUp(demo.url, 'Mooring');
  // The guest is in both organizations. Only the owner's one has a volume.
  const { link } = await owner.api('POST', `/orgs/${owner.org}/invitations`, { email: guest.email, role: 'member' });
  await guest.api('POST', '/invitations/accept', { token: new URL(link).hash.slice(1) });
  await owner.api('POST', `/orgs/${owner.org}/volumes`, { name: 'charts', max_bytes: 1000 });
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const place = (page) => {
  const { pathname, search } = new URL(page.url());
  return pathname + search;
};
const awake = (control) => control.and(control.page().locator(':enabled')).waitFor();
const member = (page, person) =>
  page.getByRole('table', { name: 'Members', exact: true }).getByRole('row').filter({ hasText: person.email });
/** The browser has this organization as its last one. */
const remembered = (page, slug) => waitFor(`the cookie of ${slug}`, async () =>
  (await page.context().cookies()).some(({ name, value }) => name === 'berth_org' && value === slug));
const volume = (page) => page.getByRole('heading', { level: 1, name: 'charts' });

test('a colleague opens a copied link', async () => {
  const desk = await openPage(browser, demo.url, { headers: owner.headers });
  await desk.page.goto(inOrg(owner.slug));
  await settled(desk.page);
  await desk.page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Volumes', exact: true }).click();
  await desk.page.getByRole('link', { name: 'charts' }).click();
  await volume(desk.page).waitFor();
  const link = desk.page.url();
  assert.equal(new URL(link).pathname, inOrg(owner.slug, '/volumes/charts'));

  const { page, faults, close } = await openPage(browser, demo.url, { headers: guest.headers });
  const answer = await page.goto(link);
  assert.equal(answer.status(), 200);
  await volume(page).waitFor();
  assert.equal(await page.locator('#org').inputValue(), owner.slug);
  assert.deepEqual([...desk.faults, ...faults], []);
  await close();
  await desk.close();
});

test('two tabs show two organizations', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, { headers: guest.headers });
  await page.goto(inOrg(guest.slug, '/team'));
  await settled(page);
  const other = await page.context().newPage();
  await other.goto(inOrg(owner.slug, '/team'));
  await settled(other);
  await awake(other.locator('#org'));
  await member(other, owner).waitFor();

  // The page has its organization at the first rendering, and keeps it.
  await page.reload();
  await awake(page.locator('#org'));
  assert.equal(await page.locator('#org').inputValue(), guest.slug);
  await member(page, guest).waitFor();
  assert.equal(await member(page, owner).count(), 0);
  const rail = page.getByRole('navigation', { name: 'Main' });
  await rail.getByRole('link', { name: 'Secrets', exact: true }).click();
  await page.waitForURL((url) => url.pathname === inOrg(guest.slug, '/secrets'));
  assert.deepEqual(faults, []);
  await close();
});

test('older addresses lead to the organization', async () => {
  const { page, faults, close } = await openPage(browser, demo.url, { headers: guest.headers });
  // The object decides, not the last organization.
  await page.goto(inOrg(guest.slug));
  await remembered(page, guest.slug);
  await page.goto('/volumes/charts?dir=');
  assert.equal(place(page), inOrg(owner.slug, '/volumes/charts?dir='));
  await volume(page).waitFor();
  // Other pages are of the last organization.
  await remembered(page, owner.slug);
  await page.goto('/usage?group=offering');
  assert.equal(place(page), inOrg(owner.slug, '/usage?group=offering'));
  await page.goto(inOrg(guest.slug));
  await remembered(page, guest.slug);
  await page.goto('/');
  assert.equal(place(page), inOrg(guest.slug));
  assert.deepEqual(faults, []);
  await close();

  // Signing in leads on to the page.
  const fresh = await openPage(browser, demo.url);
  await fresh.page.goto('/team?x=1');
  const button = fresh.page.getByRole('button', { name: 'Sign in' });
  await awake(button);
  await fresh.page.getByRole('textbox', { name: 'E-mail' }).fill(owner.email);
  await fresh.page.getByLabel('Password', { exact: true }).fill(owner.password);
  await button.click();
  await fresh.page.waitForURL((url) => url.pathname + url.search === inOrg(owner.slug, '/team?x=1'));
  await member(fresh.page, owner).waitFor();
  await fresh.close();
});

for (const width of [1440, 390]) {
  test(`the choice of an organization opens its list instead of an object, at ${width} px`, async () => {
    const viewport = { width, height: 900 };
    const { page, faults, close } = await openPage(browser, demo.url, { headers: guest.headers, viewport });
    const choice = page.locator(width >= 960 ? '#org' : '#org-in-sheet');
    const choose = async (slug) => {
      if (width < 960) {
        await page.locator('summary', { hasText: 'More' }).click();
        await awake(page.locator('.rail__sheet button', { hasText: 'Sign out' }));
      } else await awake(choice);
      await choice.selectOption(slug);
    };
    await page.goto(inOrg(owner.slug, '/volumes/charts'));
    await settled(page);
    await choose(guest.slug);
    await page.waitForURL((url) => url.pathname === inOrg(guest.slug, '/volumes'));
    await page.getByText('No volumes yet.').waitFor();
    // Links of the page and of the frame follow.
    const home = page.getByRole('link', { name: 'Home', exact: true }).first();
    assert.equal(await home.getAttribute('href'), inOrg(guest.slug));

    await choose(owner.slug);
    await page.waitForURL((url) => url.pathname === inOrg(owner.slug, '/volumes'));
    await page.getByRole('link', { name: 'charts' }).waitFor();
    await page.goBack();
    await page.getByText('No volumes yet.').waitFor();
    assert.equal(await choice.inputValue(), guest.slug);
    assert.deepEqual(faults, []);
    await close();
  });
}

test('an unknown organization is a 404 with a way on', async () => {
  const { page, close } = await openPage(browser, demo.url, { headers: owner.headers });
  for (const slug of ['no-such-organization', guest.slug]) {
    const answer = await page.goto(inOrg(slug, '/jobs'));
    assert.equal(answer.status(), 404, slug);
    await page.getByText(`No organization named ${slug}, or you are not a member of it.`).waitFor();
  }
  await page.getByRole('main').getByRole('link', { name: owner.organization }).click();
  await page.waitForURL((url) => url.pathname === inOrg(owner.slug));
  await page.getByRole('heading', { level: 1, name: 'Home' }).waitFor();
  await close();
});

test('an operator without an organization starts with the overview', async () => {
  const { page, close } = await openPage(browser, demo.url);
  await page.goto('/sign-in');
  const button = page.getByRole('button', { name: 'Sign in' });
  await awake(button);
  await page.getByRole('textbox', { name: 'E-mail' }).fill(demo.operator.email);
  await page.getByLabel('Password', { exact: true }).fill(demo.operator.password);
  await button.click();
  await page.waitForURL((url) => url.pathname === '/operator');
  await page.getByRole('heading', { level: 1, name: 'Overview' }).waitFor();
  await close();
});
