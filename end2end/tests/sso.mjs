// Single sign-on with a real provider: two people with groups sign in in the browser, and the access of one ends after
// the removal at the provider.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Provider from 'oidc-provider';
import { axeFindings } from './checks.mjs';
import {
  api, freePort, inOrg, launchBrowser, openPage, settled, signIn, signUp, startBarePortal, waitFor,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'harbour@example.org', password: 'lantern drizzle capstan quay' };
const CLIENT = { client_id: 'berth', client_secret: 'a secret between two programs' };
const ADMIN = { email: 'ada@corp.example', name: 'Ada Lund', groups: ['admins'] };
const MEMBER = { email: 'grace@corp.example', name: 'Grace Holm', groups: ['ml'] };
/** The people of the provider by their subject. */
const people = new Map([['ada', ADMIN], ['grace', MEMBER]]);
let portal, browser, server, issuer, owner, operator;

/** A provider on this host, whose development pages accept any password. */
async function startProvider(callback) {
  const port = await freePort();
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    clients: [{
      ...CLIENT, redirect_uris: [callback], response_types: ['code'], grant_types: ['authorization_code', 'refresh_token'],
    }],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'], groups: ['groups'] },
    scopes: ['openid', 'email', 'profile', 'groups', 'offline_access'],
    cookies: { keys: ['only for this test'] },
    issueRefreshToken: () => true,
    findAccount: (_, id) => {
      const person = people.get(id);
      return person && { accountId: id, claims: () => ({ sub: id, email_verified: true, ...person }) };
    },
  });
  const listening = provider.listen(port, '127.0.0.1');
  await new Promise((done, failed) => listening.on('listening', done).on('error', failed));
  return { issuer: provider.issuer, server: listening };
}

before(async () => {
  // The provider is on this host, without https.
  portal = await startBarePortal({ BERTH_PRIVATE_WEBHOOKS: 'true' });
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  operator = api(portal.url, await signIn(portal.url, OPERATOR));
  owner = await signUp(portal.url);
  ({ issuer, server } = await startProvider(`${portal.url}/api/v1/sso/${owner.org}/callback`));
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  server?.closeAllConnections();
  server?.close();
  await portal?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();

/** Clicks the button of single sign-on, and signs in on the pages of the provider. */
async function signInAt(page, subject) {
  const button = page.getByRole('button', { name: 'Continue with single sign-on' });
  await awake(button);
  await button.click();
  await page.locator('input[name="login"]').fill(subject);
  await page.locator('input[name="password"]').fill('any password');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('button', { name: 'Continue' }).click();
  await page.waitForURL((url) => url.origin === portal.url);
}

const roleOf = async (email) => {
  const { items } = await owner.api('GET', `/orgs/${owner.org}/members`);
  return items.find((member) => member.email === email)?.role;
};

test('an owner sets the provider, and an operator confirms the domain', async () => {
  const { page, faults, close } = await openPage(browser, portal.url, { headers: owner.headers });
  await page.goto(inOrg(owner.slug, '/team'));
  await settled(page);
  await page.getByLabel('Issuer').fill(issuer);
  await page.getByLabel('Client ID').fill(CLIENT.client_id);
  await page.getByLabel('Client secret').fill(CLIENT.client_secret);
  await page.getByLabel('Domains').fill('corp.example');
  await page.getByLabel('Roles by group').fill('admins = king');
  const save = page.getByRole('button', { name: 'Save single sign-on' });
  await awake(save);
  await save.click();
  await page.getByText('Enter one group a line').waitFor();
  await page.getByLabel('Roles by group').fill('admins = owner\nml = member');
  await save.click();
  await page.getByText('waits for the operator of this portal').waitFor();
  assert.deepEqual(await axeFindings(page), []);
  assert.deepEqual(faults, []);
  await close();

  const { domains } = await operator('GET', '/operator/sso-domains');
  assert.deepEqual(domains.map((one) => [one.domain, one.organization]), [['corp.example', owner.org]]);
  const cookie = await signIn(portal.url, OPERATOR);
  const desk = await openPage(browser, portal.url, { headers: cookie, viewport: { width: 390, height: 900 } });
  await desk.page.goto('/operator/settings');
  await settled(desk.page);
  const confirm = desk.page.getByRole('button', { name: /^Confirm corp\.example/ });
  await awake(confirm);
  await confirm.click();
  await desk.page.getByText('corp.example: confirmed.').waitFor();
  assert.deepEqual(await axeFindings(desk.page), []);
  await desk.close();
});

test('groups decide about roles, and a removal at the provider ends the session', async () => {
  const ada = await openPage(browser, portal.url);
  await ada.page.goto(`/sign-in?org=${owner.slug}`);
  await settled(ada.page);
  assert.deepEqual(await axeFindings(ada.page), []);
  await signInAt(ada.page, 'ada');
  await settled(ada.page);
  assert.equal(await roleOf(ADMIN.email), 'owner');
  await ada.page.goto('/account');
  await ada.page.getByRole('cell', { name: issuer }).or(ada.page.getByText(issuer)).first().waitFor();

  const grace = await openPage(browser, portal.url, { viewport: { width: 390, height: 900 } });
  await grace.page.goto('/sign-in');
  await settled(grace.page);
  const button = grace.page.getByRole('button', { name: 'Continue with single sign-on' });
  await awake(button);
  await button.click();
  await grace.page.getByText('Enter your e-mail address first.').waitFor();
  await grace.page.getByRole('textbox', { name: 'E-mail' }).fill(MEMBER.email);
  await signInAt(grace.page, 'grace');
  await settled(grace.page);
  assert.equal(await roleOf(MEMBER.email), 'member');

  people.delete('grace');
  const me = (page) => page.request.get('/api/v1/me').then((answer) => answer.status());
  await waitFor('the end of the session of Grace', async () => (await me(grace.page)) === 401, 90_000);
  assert.equal(await me(ada.page), 200);
  await grace.page.goto('/account');
  await grace.page.waitForURL(/\/sign-in/);
  await ada.close();
  await grace.close();
});

test('a refused sign-in has sentences', async () => {
  people.set('eve', { email: 'eve@elsewhere.example', name: 'Eve', groups: [] });
  const { page, close } = await openPage(browser, portal.url, { viewport: { width: 390, height: 900 } });
  await page.goto(`/sign-in?org=${owner.slug}`);
  await settled(page);
  await signInAt(page, 'eve');
  await page.getByText('does not belong to a confirmed domain').waitFor();
  assert.equal(new URL(page.url()).searchParams.get('sso'), 'domain');
  assert.deepEqual(await axeFindings(page), []);
  await close();
});
