package certs_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
)

// selfInvariants are the invariants of mode self: whatever happens to the CA Secret, to the bundles and to
// leaders, no call of a ready replica fails.
var selfInvariants = map[string]func(*testing.T, *mode){
	"two leaders that install at once make one CA":                        twoInstall,
	"a deleted Secret is replaced, and the old CA is gone in ten minutes": underLoad(deletedSecret),
	"the same while the leader restarts":                                  underLoad(deletedWithLeader),
	"a Secret two rotations old may be restored":                          underLoad(restoredSecret),
	"a foreign CA may be in every bundle":                                 foreignCA,
	"a garbage key costs nothing without a leader":                        underLoad(garbageKey),
	"a Secret of another type is mended, also for a new replica":          underLoad(opaqueSecret),
	"an immutable Secret is replaced when it is deleted":                  underLoad(immutableSecret),
	"a leader may die between the Secret and the bundles":                 underLoad(diesBetween),
	"a suspended leader may come back after two deletions":                underLoad(suspendedLeader),
	"a cluster may be off for half a year":                                offForHalfAYear,
	"a replica that starts in a change is called when it is accepted":     underLoad(startsInAChange),
}

// selfManaged is mode self. A change of the CA is a rotation: the next CA is published, and then
// old enough to sign.
func (m *mode) selfManaged(*testing.T) {
	m.empty = "waiting for the leader to make Secret"
	m.changeCA = func(t *testing.T) {
		m.edit(t, func(a *certs.Authority) { a.Next = due(t, m.Times.Remove) })
	}
}

const (
	day    = 24 * time.Hour
	caLife = 365 * day
)

// aged returns a CA that was made some time ago, and lives as long as the operator's CAs.
func aged(t *testing.T, age time.Duration) certs.KeyPair {
	t.Helper()
	ca, err := certs.IssueCA("aged", time.Now().Add(-age), caLife)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// due returns a CA that is a third of its life old after that time. As the next one in the Secret, it
// causes a rotation then.
func due(t *testing.T, after time.Duration) certs.KeyPair {
	t.Helper()
	return aged(t, (caLife+day)/3-day-after)
}

// edit changes the Secret as an administrator may.
func (m *mode) edit(t *testing.T, change func(*certs.Authority)) {
	t.Helper()
	m.await(t, "writing the Secret", func() error {
		secret := m.secret(t)
		a := certs.Decode(secret)
		change(&a)
		if err := a.Encode(secret); err != nil {
			return err
		}
		return m.Update(t.Context(), secret)
	})
}

// create stores a Secret.
func (m *mode) create(t *testing.T, a certs.Authority) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.SecretName}}
	if err := errors.Join(a.Encode(secret), m.Create(t.Context(), secret)); err != nil {
		t.Fatal(err)
	}
}

func (m *mode) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := m.Get(t.Context(), client.ObjectKey{Namespace: m.Namespace, Name: m.SecretName}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

func (m *mode) deleteSecret(t *testing.T) {
	t.Helper()
	if err := m.Delete(t.Context(), m.secret(t)); err != nil {
		t.Fatal(err)
	}
}

// awaitSecret waits until the Secret is as it should be.
func (m *mode) awaitSecret(t *testing.T, what string, is func(certs.Authority) bool) {
	t.Helper()
	m.await(t, what, func() error {
		secret := &corev1.Secret{}
		err := m.Get(t.Context(), client.ObjectKey{Namespace: m.Namespace, Name: m.SecretName}, secret)
		if err == nil && !is(certs.Decode(secret)) {
			err = errors.New("it is not")
		}
		return err
	})
}

// awaitRotation waits until another CA than before signs.
func (m *mode) awaitRotation(t *testing.T, before certs.Authority) {
	t.Helper()
	m.awaitSecret(t, "another CA", func(a certs.Authority) bool { return !a.Current.Certificate.Equal(before.Current.Certificate) })
}

// awaitFollowed waits until all replicas serve leaves of the CA that signs, and every bundle holds
// exactly the CAs of the Secret.
func (m *mode) awaitFollowed(t *testing.T, replicas ...*replica) {
	t.Helper()
	for _, r := range replicas {
		m.awaitLeaf(t, "a leaf of the CA that signs", r, func(now *tls.Certificate) bool {
			return slices.Equal(now.Leaf.AuthorityKeyId, certs.Decode(m.secret(t)).Current.Certificate.SubjectKeyId)
		})
	}
	m.await(t, "the CAs of the Secret, and no others", func() error {
		var err error
		want := string(certs.EncodeBundle(certs.Decode(m.secret(t)).CAs()))
		for place, bundle := range m.bundles(t) {
			if bundle.pem != want {
				cas, _ := certs.ParseBundle([]byte(bundle.pem))
				err = errors.Join(err, fmt.Errorf("%s holds %d CAs", place, len(cas)))
			}
		}
		return err
	})
}

// underLoad is the invariant that no call fails while something happens. It begins with two replicas that are called; the
// first leads. In the end all replicas have followed what the Secret holds, and are ready. happen returns the
// replicas that it has started.
func underLoad(happen func(t *testing.T, m *mode, replicas []*replica) (more []*replica)) func(*testing.T, *mode) {
	return func(t *testing.T, m *mode) {
		replicas := m.begin(t, 2)
		replicas[0].lead(t)
		m.awaitReady(t, replicas...)
		callers := m.call(t, replicas...)
		more := happen(t, m, replicas)
		m.awaitReady(t, more...)
		replicas = append(replicas, more...)
		m.awaitFollowed(t, replicas...)
		callers.end(t)
		wantReady(t, replicas)
	}
}

// trusts reports whether a bundle anywhere holds a CA.
func (m *mode) trusts(t *testing.T, a certs.Authority) bool {
	for _, bundle := range m.bundles(t) {
		cas, _ := certs.ParseBundle([]byte(bundle.pem))
		if slices.ContainsFunc(cas, a.Current.Certificate.Equal) {
			return true
		}
	}
	return false
}

func twoInstall(t *testing.T, m *mode) {
	replicas := m.begin(t, 2)
	for _, r := range replicas {
		r.lead(t)
	}
	m.awaitReady(t, replicas...)
	callers := m.call(t, replicas...)
	first := m.secret(t)
	m.awaitFollowed(t, replicas...)
	if now := m.secret(t); now.ResourceVersion != first.ResourceVersion {
		t.Error("the Secret was written twice")
	}
	callers.end(t)
}

func deletedSecret(t *testing.T, m *mode, replicas []*replica) []*replica {
	leaked := certs.Decode(m.secret(t))
	m.deleteSecret(t)
	m.awaitGone(t, leaked)
	return nil
}

// awaitGone waits until no bundle holds the leaked CA: ten minutes at most, by the times of the mode.
func (m *mode) awaitGone(t *testing.T, leaked certs.Authority) {
	t.Helper()
	begun := time.Now()
	m.await(t, "the end of the old CA", func() error {
		if m.trusts(t, leaked) {
			return errors.New("it is trusted")
		}
		return nil
	})
	took := time.Since(begun)
	if t.Logf("the old CA was trusted for %s after the deletion", took.Round(time.Second/10)); took > m.Times.Settled+lag {
		t.Errorf("the old CA was trusted for %s", took)
	}
}

func deletedWithLeader(t *testing.T, m *mode, replicas []*replica) []*replica {
	leaked := certs.Decode(m.secret(t))
	replicas[0].resign()
	m.deleteSecret(t)
	<-time.After(m.Times.Poll * 2)
	replicas[1].lead(t)
	m.awaitGone(t, leaked)
	return nil
}

func restoredSecret(t *testing.T, m *mode, replicas []*replica) []*replica {
	old := certs.Decode(m.secret(t))
	for range 2 {
		before := certs.Decode(m.secret(t))
		m.changeCA(t)
		m.awaitRotation(t, before)
		m.awaitFollowed(t, replicas...)
	}
	if m.trusts(t, old) {
		t.Error("after two rotations the first CA is trusted")
	}
	m.edit(t, func(a *certs.Authority) { *a = old })
	return nil
}

// foreignCA begins as a change of the mode does: the bundles hold the CA of the mode before, and
// replicas of that mode are still called.
func foreignCA(t *testing.T, m *mode) {
	foreign := aged(t, 0)
	before := *m
	before.mounted(t)
	m.mount(t, foreign)
	former := newReplica(t, &before)
	former.start(t)
	former.lead(t)
	m.awaitReady(t, former, former) // API servers call it in both places
	m.awaitPublished(t, former)
	former.resign()

	replicas := m.begin(t, 2)
	callers, ofFormer := m.call(t, replicas...), m.call(t, former)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	ofFormer.end(t)
	former.stop() // a rollout ends it before its CA is removed
	m.awaitFollowed(t, replicas...)
	for _, r := range replicas {
		if slices.ContainsFunc(r.Source.CAs(), foreign.Certificate.Equal) {
			t.Error("the foreign CA is in the Secret")
		}
	}
	callers.end(t)
	wantReady(t, replicas)
}

func garbageKey(t *testing.T, m *mode, replicas []*replica) []*replica {
	replicas[0].resign()
	before := certs.Decode(m.secret(t))
	m.spoil(t, corev1.TLSPrivateKeyKey)
	for _, r := range replicas { // with the next CA, which every bundle holds
		m.awaitLeaf(t, "a leaf of the next CA", r, func(now *tls.Certificate) bool {
			return slices.Equal(now.Leaf.AuthorityKeyId, before.Next.Certificate.SubjectKeyId)
		})
	}
	fresh := newReplica(t, m)
	fresh.start(t)
	m.await(t, "readiness of a new replica", fresh.Source.Ready)
	m.spoil(t, "next.key")
	<-time.After(m.Times.Remove)
	wantReady(t, replicas)
	replicas[1].lead(t)
	m.awaitSecret(t, "CAs that can be used", func(a certs.Authority) bool { return a.Current.Key != nil && a.Next.Key != nil })
	m.awaitFollowed(t, append(replicas, fresh)...)
	said := false
	for events := replicas[1].events.Events; len(events) > 0 && !said; {
		said = strings.Contains(<-events, certs.ReasonCAReplaced)
	}
	if !said {
		t.Error("no event says that a CA was replaced")
	}
	return []*replica{fresh}
}

// replaceSecret makes the Secret again, as a restore or a GitOps tool does, with keys that cannot be used.
func (m *mode) replaceSecret(t *testing.T, change func(*corev1.Secret)) {
	t.Helper()
	secret := m.secret(t)
	secret.Data[corev1.TLSPrivateKeyKey], secret.Data["next.key"] = []byte("garbage"), []byte("garbage")
	secret.ResourceVersion = ""
	change(secret)
	m.deleteSecret(t)
	if err := m.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

func opaqueSecret(t *testing.T, m *mode, replicas []*replica) []*replica {
	m.replaceSecret(t, func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque })
	fresh := newReplica(t, m)
	fresh.start(t)
	m.awaitSecret(t, "CAs that can be used", func(a certs.Authority) bool { return a.Current.Key != nil && a.Next.Key != nil })
	if is := m.secret(t).Type; is != corev1.SecretTypeOpaque {
		t.Errorf("its type is %s", is)
	}
	return []*replica{fresh}
}

func immutableSecret(t *testing.T, m *mode, replicas []*replica) []*replica {
	m.replaceSecret(t, func(s *corev1.Secret) { s.Immutable = new(true) })
	fresh := newReplica(t, m)
	fresh.start(t)
	for _, r := range []*replica{replicas[0], fresh} { // the leader, and one that is not ready
		m.await(t, "the command in the log", func() error {
			if !strings.Contains(r.log.String(), "kubectl -n system delete secret ca") {
				return errors.New("it is not there")
			}
			return nil
		})
	}
	<-time.After(m.Times.Settled)
	wantReady(t, replicas)
	m.deleteSecret(t)
	return []*replica{fresh}
}

// spoil makes a member of the Secret garbage.
func (m *mode) spoil(t *testing.T, member string) {
	t.Helper()
	secret := m.secret(t)
	secret.Data[member] = []byte("garbage")
	if err := m.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

func diesBetween(t *testing.T, m *mode, replicas []*replica) []*replica {
	before := certs.Decode(m.secret(t))
	replicas[0].published.Store(false)
	m.deleteSecret(t)
	m.awaitRotation(t, before)
	<-time.After(m.Times.Remove)
	replicas[0].resign()
	heir := newReplica(t, m) // remembers nothing
	heir.start(t)
	heir.lead(t)
	return nil
}

func suspendedLeader(t *testing.T, m *mode, replicas []*replica) []*replica {
	suspended := newReplica(t, m)
	suspended.start(t)
	m.await(t, "readiness", suspended.Source.Ready)
	replicas[0].resign()
	suspended.lead(t)
	m.awaitFollowed(t, replicas...)
	suspended.suspended.Store(true)
	suspended.deaf.Store(true)
	replicas[1].lead(t)
	for range 2 {
		before := certs.Decode(m.secret(t))
		m.deleteSecret(t)
		m.awaitRotation(t, before)
		m.awaitFollowed(t, replicas...)
	}
	suspended.suspended.Store(false)
	<-time.After(2 * m.Times.PollClock) // it still sees what was published before it was suspended
	suspended.deaf.Store(false)
	<-time.After(m.Times.Remove)
	m.awaitFollowed(t, append(replicas, suspended)...)
	return nil // it leads beside the other one, and is no endpoint
}

// offForHalfAYear begins with what was stored half a year ago. TestWhatTheSecretShouldHold has other ages.
func offForHalfAYear(t *testing.T, m *mode) {
	stored := certs.Authority{Current: aged(t, 400*day), Next: aged(t, 183*day)} // the current one has ended
	m.create(t, stored)
	m.reset(t, certs.EncodeBundle(stored.CAs()))
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	callers := m.call(t, replicas...)
	m.awaitFollowed(t, replicas...)
	if certs.Decode(m.secret(t)).Current.Certificate.Equal(stored.Current.Certificate) {
		t.Error("the CA was not rotated")
	}
	callers.end(t)
}

func startsInAChange(t *testing.T, m *mode, replicas []*replica) []*replica {
	m.awaitFollowed(t, replicas...)
	before := certs.Decode(m.secret(t))
	m.deleteSecret(t)
	m.awaitRotation(t, before)
	fresh := newReplica(t, m)
	fresh.start(t)
	also := m.call(t, fresh) // only while it is ready
	m.awaitFollowed(t, append(replicas, fresh)...)
	m.await(t, "readiness of a new replica", fresh.Source.Ready)
	also.end(t)
	return []*replica{fresh}
}
