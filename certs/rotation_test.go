package certs_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/rounds"
)

// shortLived returns lifetimes of 40 minutes during which a CA signs, and of five and a third
// during which a leaf serves.
func shortLived() certs.Options {
	opts := options()
	opts.CALifetime, opts.LeafLifetime, opts.Settle, opts.Poll = time.Hour, 8*time.Minute, time.Minute, 10*time.Second
	return opts
}

// apiServerLag is how long an API server may continue to use what was published before. It is
// less than Settle.
const apiServerLag = 30 * time.Second

// apiServers remembers what has been published, because an API server may be behind.
type apiServers struct {
	history []publication
	checked map[string]bool // leaf and bundle
}

type publication struct {
	until   time.Time // when it was replaced; zero while it is current
	bundles map[string]string
}

// observe records what is published now.
func (a *apiServers) observe(t *testing.T, server client.Client) {
	t.Helper()
	now, bundles := time.Now(), publishedBundles(t, server)
	if last := len(a.history) - 1; last < 0 || !maps.Equal(a.history[last].bundles, bundles) {
		if last >= 0 {
			a.history[last].until = now
		}
		a.history = append(a.history, publication{bundles: bundles})
	}
}

// forget drops what API servers no longer use.
func (a *apiServers) forget() {
	for len(a.history) > 1 && time.Since(a.history[0].until) > apiServerLag {
		a.history = a.history[1:]
	}
}

// call makes every API server call, each of which may be up to date or behind. A call that has
// worked once works until the leaf expires.
func (a *apiServers) call(leaf *tls.Certificate) error {
	for _, p := range a.history {
		for place, bundle := range p.bundles {
			call := string(leaf.Leaf.Signature) + bundle
			if a.checked[call] {
				continue
			}
			if err := certs.Verify(leaf, []byte(bundle), host, time.Now()); err != nil {
				return fmt.Errorf("calling because of %s: %w", place, err)
			}
			a.checked[call] = true
		}
	}
	return nil
}

// The law of rotation: whatever happens to replicas and leaders, at no moment does an API
// server refuse a leaf that has not expired, whether the API server is up to date or behind.
func TestRotationLosesNoCall(t *testing.T) {
	for seed := range uint64(rounds.Of(2, 1)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { rotateUnderFire(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

// What may happen to replicas at any time.
const (
	resign = iota
	cutOff
	reconnect
	restart
	elect
)

func rotateUnderFire(t *testing.T, random *rand.Rand) {
	var writes atomic.Int64
	read := int64(-1)
	server := interceptor.NewClient(newAPIServer(t, manifests()...), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			writes.Add(1)
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			writes.Add(1)
			return c.Patch(ctx, o, p, opts...)
		},
	})
	var replicas []*replica
	for range 3 {
		r := newReplica(t, server, shortLived(), targets()...)
		r.start(t)
		replicas = append(replicas, r)
	}
	leader := replicas[0]
	leader.lead(t)
	pass(5 * time.Second)

	callers := apiServers{checked: map[string]bool{}}
	signers := map[string]bool{}
	biggest := 0
	led := time.Now()
	for end := time.Now().Add(150 * time.Minute); time.Now().Before(end) && !t.Failed(); {
		i := random.IntN(len(replicas))
		event := random.IntN(100)
		if leader != nil && leader.connected() {
			led = time.Now()
		} else if time.Since(led) > 10*time.Minute { // if the last third of a CA's life passes without a leader, the CA expires in any case
			event = reconnect
		}
		switch event {
		case resign:
			if leader != nil {
				leader.resign()
				leader = nil
			}
		case elect, elect + 1:
			if leader == nil {
				leader = replicas[i]
				leader.lead(t)
			}
		case cutOff: // may last longer than the leaf is valid
			replicas[i].connect(false)
		case reconnect:
			for _, r := range replicas {
				r.connect(true)
			}
			if leader == nil {
				leader = replicas[i]
				leader.lead(t)
			}
		case restart:
			if replicas[i] != leader {
				replicas[i].stop()
				replicas[i] = newReplica(t, server, shortLived(), targets()...)
				replicas[i].start(t)
			}
		}
		pass(5 * time.Second)

		callers.forget()
		if now := writes.Load(); read != now {
			read = now
			callers.observe(t, server)
			authority := getAuthority(t, server, time.Now())
			signers[authority.Signing.Certificate.Subject.CommonName] = true
			biggest = max(biggest, len(authority.Bundle()))
		}
		for i, r := range replicas {
			leaf, err := r.source.GetCertificate(nil)
			if err != nil || leaf.Leaf.NotAfter.Before(time.Now()) {
				continue // cut off since it started, or for too long to renew its leaf
			}
			if err := callers.call(leaf); err != nil {
				t.Errorf("%s: replica %d: %v", time.Now(), i, err)
			}
		}
	}
	if len(signers) < 3 || biggest < 2 {
		t.Errorf("%d CAs have signed and the bundle held up to %d: this run shows nothing", len(signers), biggest)
	}
}

func TestRotationStepByStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, told := newAPIServer(t, manifests()...), &reasons{}
		opts := shortLived()
		opts.Events = told
		leader, follower := startPair(t, server, opts, shortLived(), targets()...)
		first := getAuthority(t, server, time.Now()).Signing.Certificate

		annotateSecret(t, server, certs.RotateAnnotation, "please")
		pass(15 * time.Second)
		rotating := getAuthority(t, server, time.Now())
		if rotating.Next == nil || rotating.RotationRequested || !rotating.Signing.Certificate.Equal(first) {
			t.Fatalf("a rotation that was asked for has not begun: %+v", getSecret(t, server).Annotations)
		}
		for place, bundle := range publishedBundles(t, server) {
			if list, _ := certs.ParseBundle([]byte(bundle)); len(list) != 2 {
				t.Errorf("%s holds %d CAs, want the old and the next", place, len(list))
			}
		}

		pass(time.Minute) // to settle
		pass(20 * time.Second)
		promoted := getAuthority(t, server, time.Now())
		if promoted.Next != nil || !promoted.Signing.Certificate.Equal(rotating.Next.Certificate) || len(promoted.Old) != 1 {
			t.Fatal("the next CA does not sign, or the old one is not trusted any more")
		}
		for _, r := range []*replica{leader, follower} {
			if err := certs.Verify(serving(t, r), bundleOf(promoted.Signing), host, time.Now()); err != nil {
				t.Errorf("a replica does not serve a leaf of the new CA: %v", err)
			}
		}

		pass(time.Until(promoted.Old[0].RetireAfter) + 15*time.Second)
		for place, bundle := range publishedBundles(t, server) {
			if list, _ := certs.ParseBundle([]byte(bundle)); len(list) != 1 || list[0].Equal(first) {
				t.Errorf("%s still holds the old CA", place)
			}
		}
		if len(told.seen) > 0 {
			t.Errorf("events are %q, want none: nothing is unusual", told.seen)
		}
		checkError(t, follower.readiness.Ready(t.Context()), "")
	})
}

// The next CA does not sign before every client has it, however long that takes.
func TestRotationWaitsForEveryClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, manifests()...)
		r := newReplica(t, server, shortLived(), targets()...)
		r.start(t)
		stop := run(t, r.leader[0])       // rotates
		publishing := run(t, r.leader[1]) // publishes
		pass(2 * time.Second)
		publishing() // no leader publishes any more

		annotateSecret(t, server, certs.RotateAnnotation, "please")
		pass(10 * time.Minute)
		if getAuthority(t, server, time.Now()).Next == nil {
			t.Error("the next CA signs, and no API server trusts it")
		}
		stop()
	})
}

// A new leader may have missed what the last one did. It reads before it publishes, so no
// bundle ever loses a CA that may sign.
func TestNewLeaderReadsTheSecretBeforeItPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, manifests()...)
		rarely := shortLived()
		rarely.Poll = time.Minute
		leader, follower := startPair(t, server, shortLived(), rarely, targets()...)
		annotateSecret(t, server, certs.RotateAnnotation, "please")
		pass(15 * time.Second)
		leader.resign()
		bundle, writes := leader.source.Bundle(), 0
		if bytes.Equal(follower.source.Bundle(), bundle) {
			t.Fatal("the follower knows of the rotation, so this shows nothing")
		}

		follower.client = interceptor.NewClient(follower.client, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				writes++
				return c.Patch(ctx, o, p, opts...)
			},
		})
		follower.lead(t)
		pass(3 * time.Second)
		if writes > 0 || !bytes.Equal(follower.source.Bundle(), bundle) {
			t.Errorf("the new leader wrote %d objects, want none: all was well", writes)
		}
	})
}

// A CA that an administrator has written into the Secret is not published yet. The old leaf is
// served until it is, and the old CA stays published until then.
func TestCAReplacedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, manifests()...)
		leader, follower := startPair(t, server, shortLived(), shortLived(), targets()...)
		old := serving(t, follower)
		leader.resign()
		putCA(t, server, issueCA(t, time.Now(), time.Hour))
		pass(30 * time.Second)
		if serving(t, follower) != old {
			t.Error("a leaf is served that no API server trusts")
		}
		checkError(t, follower.readiness.Ready(t.Context()), "")

		leader.lead(t)
		pass(time.Second)
		if serving(t, follower) != old {
			t.Error("a leaf is served that some API server may not trust yet")
		}
		checkError(t, follower.readiness.Ready(t.Context()), "")
		pass(shortLived().Settle + 15*time.Second)
		if serving(t, follower) == old {
			t.Error("the old leaf is served when all API servers trust the new one")
		}
		checkError(t, follower.readiness.Ready(t.Context()), "")
	})
}

// Another CA is published so late that the leaf would expire before it is certain that API
// servers know that CA.
func TestLeafIsNotServedUntilItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, manifests()...)
		leader := newReplica(t, server, shortLived(), targets()...)
		leader.start(t)
		leader.lead(t)
		pass(2 * time.Second)
		old := serving(t, leader)
		leader.resign()
		putCA(t, server, issueCA(t, time.Now(), time.Hour))
		pass(time.Until(old.Leaf.NotAfter) - 30*time.Second)
		leader.lead(t)
		pass(5 * time.Second)
		if serving(t, leader) != old {
			t.Error("a leaf is served that some API server may not trust yet")
		}
		pass(20 * time.Second)
		if serving(t, leader) == old {
			t.Error("the old leaf is served until it expires")
		}
		checkError(t, leader.readiness.Ready(t.Context()), "")
	})
}

func annotateSecret(t *testing.T, server client.Client, key, value string) {
	t.Helper()
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = "system", "ca"
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value))
	if err := server.Patch(t.Context(), secret, patch); err != nil {
		t.Fatal(err)
	}
}
