package certs_test

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sidecarset/operator/certs"
)

// Replicas that start at once against an empty namespace end up with one CA, and every leaf verifies against every bundle.
func TestReplicasThatRaceShareOneCA(t *testing.T) {
	server := newAPIServer(t)
	var replicas []*replica
	var ready, done sync.WaitGroup
	ready.Add(5)
	for range 5 {
		r := newReplica(t, server, options())
		replicas = append(replicas, r)
		done.Go(func() {
			ready.Done()
			ready.Wait()
			if err := r.source.Refresh(t.Context()); err != nil {
				t.Errorf("Refresh: %v", err)
			}
		})
	}
	done.Wait()
	for i, a := range replicas {
		for j, b := range replicas {
			if err := certs.Verify(serving(t, a), b.source.Bundle(), host, time.Now()); err != nil {
				t.Errorf("leaf of replica %d against bundle of replica %d: %v", i, j, err)
			}
		}
	}
	if got := len(getAuthority(t, server, time.Now()).Bundle()); got != 1 {
		t.Errorf("%d CAs, want 1", got)
	}
}

func TestGetCertificateSaysWhyThereIsNone(t *testing.T) {
	server := newAPIServer(t)
	r := newReplica(t, server, options())
	_, err := r.source.GetCertificate(&tls.ClientHelloInfo{})
	checkError(t, err, "Secret system/ca has not been read yet")

	r.connect(false)
	checkError(t, r.source.Refresh(t.Context()), "getting CA Secret system/ca")
	_, err = r.source.GetCertificate(&tls.ClientHelloInfo{})
	checkError(t, err, errCutOff.Error())
	if r.source.Bundle() != nil {
		t.Error("there is a bundle")
	}

	r.connect(true)
	checkError(t, r.source.Refresh(t.Context()), "")
	serving(t, r)
}

func TestLeafIsRenewedByTheWallClock(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	opts := options()
	opts.Clock = clk
	r := newReplica(t, newAPIServer(t), opts)
	refresh := func() *tls.Certificate {
		if err := r.source.Refresh(t.Context()); err != nil {
			t.Fatalf("Refresh: %v", err)
		}
		return serving(t, r)
	}
	first := refresh()
	clk.SetTime(start.Add(20*day - time.Second))
	if refresh() != first {
		t.Error("renewed before two thirds of its life")
	}
	clk.SetTime(start.Add(20 * day))
	second := refresh()
	if second == first {
		t.Error("not renewed at two thirds of its life")
	}
	clk.SetTime(start.Add(100 * day)) // the machine slept
	third := refresh()
	checkError(t, certs.Verify(third, r.source.Bundle(), host, clk.Now()), "")
	clk.SetTime(start.Add(50 * day)) // the clock was wrong
	checkError(t, certs.Verify(refresh(), r.source.Bundle(), host, clk.Now()), "")
}

// A leaf that is due is kept when the Secret cannot be read, because a CA that no longer signs must not be signed with.
func TestLeafIsKeptWhileTheSecretCannotBeRead(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	opts := options()
	opts.Clock = clk
	r := newReplica(t, newAPIServer(t), opts)
	checkError(t, r.source.Refresh(t.Context()), "")
	leaf := serving(t, r)

	r.connect(false)
	clk.SetTime(start.Add(29 * day))
	checkError(t, r.source.Refresh(t.Context()), errCutOff.Error())
	if serving(t, r) != leaf {
		t.Error("another leaf, although the replica could not read which CA signs")
	}
}

// Deleting the Secret does no harm: any replica restores what it remembers.
func TestDeletedSecretIsRestored(t *testing.T) {
	server := newAPIServer(t)
	r := newReplica(t, server, options())
	checkError(t, r.source.Refresh(t.Context()), "")
	before, leaf := getSecret(t, server), serving(t, r)
	if err := server.Delete(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	checkError(t, r.source.Refresh(t.Context()), "")
	if string(getSecret(t, server).Data["ca.crt"]) != string(before.Data["ca.crt"]) {
		t.Error("another CA was made")
	}
	if serving(t, r) != leaf {
		t.Error("another leaf is served")
	}
}

func TestFollowersReportAnUnusableSecret(t *testing.T) {
	broken := &corev1.Secret{}
	broken.Namespace, broken.Name = "system", "ca"
	server := newAPIServer(t, broken)
	r := newReplica(t, server, options())
	checkError(t, r.source.Refresh(t.Context()), "reading the CA from Secret system/ca: tls.crt or tls.key is empty; the leader replaces it")
	if len(getSecret(t, server).Data) != 0 {
		t.Error("a follower wrote the Secret")
	}
}

func TestMissingPermissionIsNamed(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "ca", errors.New("no role"))
	server := interceptor.NewClient(newAPIServer(t), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return forbidden },
	})
	err := newReplica(t, server, options()).source.Refresh(t.Context())
	checkError(t, err, "creating CA Secret system/ca")
	if !apierrors.IsForbidden(err) {
		t.Errorf("error %v hides its cause", err)
	}
}

func TestLeaderRepairsADamagedSecret(t *testing.T) {
	tests := map[string]struct {
		damage func(*corev1.Secret)
		want   bool
	}{
		"an empty Secret":            {func(s *corev1.Secret) { s.Data = nil }, true},
		"a broken key":               {func(s *corev1.Secret) { s.Data["tls.key"] = []byte("garbage") }, true},
		"a bundle without its CA":    {func(s *corev1.Secret) { s.Data["ca.crt"] = nil }, true},
		"nothing that works":         {func(*corev1.Secret) {}, false},
		"nothing of another program": {func(s *corev1.Secret) { s.Data = servingSecret(t).Data }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				secret := secretOf(t, certs.Authority{Signing: issueCA(t, time.Now(), 365*day)})
				tc.damage(secret)
				server := newAPIServer(t, secret)
				before := getSecret(t, server)
				r := newReplica(t, server, options())
				r.start(t)
				r.lead(t)
				pass(time.Minute)

				after := getSecret(t, server)
				if changed := after.ResourceVersion != before.ResourceVersion; changed != tc.want {
					t.Errorf("Secret was written: %v, want %v", changed, tc.want)
				}
				if tc.want {
					getAuthority(t, server, time.Now())
					serving(t, r)
				}
			})
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	tests := map[string]struct {
		change func(*certs.Options)
		want   string
	}{
		"defaults are good":           {func(*certs.Options) {}, ""},
		"a Secret has a name":         {func(o *certs.Options) { o.SecretName = "" }, "no name"},
		"a leaf has a subject":        {func(o *certs.Options) { o.Subject = certs.Subject{} }, "neither a DNS name nor an IP address"},
		"durations are not negative":  {func(o *certs.Options) { o.Poll = -1 }, "negative"},
		"leaves fit into a CA's life": {func(o *certs.Options) { o.CALifetime = 80 * day }, "a third of the CA's lifetime"},
		"leaves live to be renewed":   {func(o *certs.Options) { o.LeafLifetime = 59 * time.Second }, "less than two polls"},
		"modes are known":             {func(o *certs.Options) { o.Mode = "magic" }, `cannot come from "magic": use self, cert-manager or files`},
		"short lives are good for tests": {func(o *certs.Options) {
			o.CALifetime, o.LeafLifetime, o.Settle, o.Poll = 30*time.Second, 8*time.Second, time.Second, time.Second
		}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			opts := options()
			tc.change(&opts)
			checkError(t, opts.Validate(), tc.want)
		})
	}
}

// serving returns the leaf that a replica serves.
func serving(t *testing.T, r *replica) *tls.Certificate {
	t.Helper()
	cert, err := r.source.GetCertificate(&tls.ClientHelloInfo{ServerName: host})
	if err != nil {
		t.Fatalf("GetCertificate: %v", err)
	}
	return cert
}
