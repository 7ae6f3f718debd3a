package chaos

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/conformance"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// leafLifetime is as short as a busy machine allows: a leaf is renewed after two thirds of
// it. A CA is renewed after two thirds of caLifetime; the short form does not wait for that,
// but requests it.
var leafLifetime, caLifetime = testkit.Scaled(15*time.Second, 9*time.Second), testkit.Scaled(time.Minute, 33*time.Second)

// shortLived returns the flags for these lifetimes. Leader election has its default times,
// because these tests are not about the loss of leaders.
func shortLived() []string {
	return []string{
		"--cert-ca-lifetime=" + caLifetime.String(), "--cert-leaf-lifetime=" + leafLifetime.String(), "--cert-settle=2s", "--cert-poll=250ms",
		"--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=2s",
	}
}

// CAs and leaves change all the time. Then the CA Secret is deleted, damaged and written
// by another program. Meanwhile Pods are created, objects converted and SidecarSets
// admitted, all through the API servers, and the test calls every replica with a handshake
// for each call.
func TestCertificatesChangeUnderLoad(t *testing.T) {
	t.Cleanup(func() { // when the replicas have ended: their CA lives for a minute, and would expire in another test
		err := clients[0].CoreV1().Secrets(deploy.Namespace).Delete(context.WithoutCancel(t.Context()), deploy.CertSecret, metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	d := startDrill(t, startReplicas(t, 2, shortLived()...), "rotating")
	d.phase(t, "rotations", func() {
		d.rotate(t, 1, true) // the CA may be that of another test, and valid for a year
		d.rotate(t, testkit.Scaled(4, 20), testkit.Scaled(true, false))
		await.Within(t, 10*time.Minute, "renewals", func(context.Context) error {
			if got, want := d.observer.count().leaves, testkit.Scaled(10, 100); got < want {
				return fmt.Errorf("%d leaves, want %d", got, want)
			}
			return nil
		})
	})
	d.phase(t, "Secret deleted", func() { deleteSecret(t) })
	d.phase(t, "Secret corrupted", func() { corruptSecret(t) })
	d.phase(t, "Secret written by another program", func() { d.replaceSecret(t) })
	d.phase(t, "Secret written with a CA that may not sign for us", func() { rejectSecret(t) })
	d.phase(t, "asked to rotate all the time", func() { d.rotateWithoutEnd(t, testkit.Scaled(5*time.Second, time.Minute)) })
	d.end(t)
}

// drill is a fleet under load while its certificates change.
type drill struct {
	fleet    *fleet
	load     *testkit.Running
	observer *observer
	callers  *callers
	begun    time.Time
}

func startDrill(t *testing.T, f *fleet, sidecarSet string) *drill {
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, sidecarSet)
	awaitInjection(t, f, namespace, sidecarSet, 5)
	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels(sidecarSet), Sidecars: []string{sidecarSet}, Rate: 25}
	return &drill{f, load.Start(t.Context()), watchLeaves(t, f.replicas), callAll(t, f.replicas, namespace, sidecarSet), time.Now()}
}

// phase calls happen, and reports the figures of that time.
func (d *drill) phase(t *testing.T, name string, happen func()) {
	begin, seen, calls, figures := time.Now(), d.observer.count(), d.callers.count(), d.load.Figures()
	happen()
	await.Eventually(t, "Pods enough to show something", func(context.Context) error {
		if made, want := d.load.Figures().Created-figures.Created, testkit.Scaled(50, 250); made < want {
			return fmt.Errorf("%d of %d", made, want)
		}
		return nil
	})
	changed, called, now := d.observer.count(), d.callers.count(), d.load.Figures()
	testkit.Report(t, "%s: took=%s CAs=%d leaves=%d pods=%d failed=%d uninjected=%d; other calls: made=%d failed=%d", name, testkit.Rounded(time.Since(begin)),
		changed.authorities-seen.authorities, changed.leaves-seen.leaves,
		now.Created-figures.Created, now.Failed-figures.Failed, now.Uninjected-figures.Uninjected,
		called.made-calls.made, called.failed-calls.failed)
}

// end reports, and fails the test if a call has failed.
func (d *drill) end(t *testing.T) {
	figures, calls, seen := d.load.Stop(), d.callers.end(), d.observer.end()
	testkit.Report(t, "replicas=%d CAs=%d leaves=%d rate=%d %s; other calls: %s",
		len(d.fleet.replicas), seen.authorities, seen.leaves, d.load.Load.Rate, &figures, calls)
	check(t, figures)
	if calls.failed > 0 {
		t.Errorf("calls failed: %s: %v", calls, errors.Join(calls.errs...))
	}
	if seen.err != nil {
		t.Error(seen.err)
	}
	for _, replica := range d.fleet.replicas {
		if err := replica.Ready(t.Context()); err != nil {
			t.Errorf("%s is not ready: %v", replica.Name, err)
		}
	}
}

// rotate waits until all replicas have followed a number of changes of the CA. If request is
// true, it requests the next change when the last CA is in use.
func (d *drill) rotate(t *testing.T, times int, request bool) {
	before := d.observer.count().authorities
	for i := range times {
		if request {
			annotateCASecret(t, certs.RotateAnnotation, "now")
		}
		await.Eventually(t, fmt.Sprintf("change of CA %d", i+1), func(context.Context) error {
			if got := d.observer.count().authorities - before; got <= i {
				return fmt.Errorf("%d changes so far", got)
			}
			return nil
		})
	}
}

func deleteSecret(t *testing.T) {
	before := caSecret(t)
	secrets := clients[0].CoreV1().Secrets(deploy.Namespace)
	if err := secrets.Delete(t.Context(), deploy.CertSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the same CA in a new Secret", func(ctx context.Context) error {
		now, err := secrets.Get(ctx, deploy.CertSecret, metav1.GetOptions{})
		if err == nil && (now.UID == before.UID || !sharesCA(before, now)) {
			err = errors.New("it is the old Secret, or holds another CA")
		}
		return err
	})
	awaitEvent(t, certs.ReasonCARestored)
}

func corruptSecret(t *testing.T) {
	before := caSecret(t)
	updateCASecret(t, func(secret *corev1.Secret) { secret.Data[corev1.TLSPrivateKeyKey] = []byte("garbage") })
	await.Eventually(t, "a CA that can be used", func(ctx context.Context) error {
		now, err := clients[0].CoreV1().Secrets(deploy.Namespace).Get(ctx, deploy.CertSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !sharesCA(before, now) {
			return errors.New("it holds another CA")
		}
		_, err = certs.DecodeAuthority(now, time.Now())
		return err
	})
	awaitEvent(t, certs.ReasonCAReplaced)
}

func (d *drill) replaceSecret(t *testing.T) {
	foreign, err := certs.NewAuthority(time.Now(), certs.Policy{CALifetime: time.Hour, LeafLifetime: leafLifetime})
	if err != nil {
		t.Fatal(err)
	}
	updateCASecret(t, func(secret *corev1.Secret) {
		secret.Data, secret.Annotations = nil, nil
		if err := foreign.Encode(secret); err != nil {
			t.Fatal(err)
		}
	})
	await.Eventually(t, "leaves of the foreign CA", func(context.Context) error {
		return d.observer.serves(foreign.Signing.Certificate.SubjectKeyId)
	})
	awaitEvent(t, certs.ReasonForeignCA)
}

// rejectSecret writes a CA with name constraints into the Secret. The leader restores the CA
// from before, and it issues leaves again.
func rejectSecret(t *testing.T) {
	before := caSecret(t)
	company := conformance.ConstrainedCA(t, time.Now())
	key, err := x509.MarshalPKCS8PrivateKey(company.Key)
	if err != nil {
		t.Fatal(err)
	}
	updateCASecret(t, func(secret *corev1.Secret) {
		secret.Data[corev1.TLSCertKey] = certs.EncodeBundle([]*x509.Certificate{company.Certificate})
		secret.Data[corev1.TLSPrivateKeyKey] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	})
	await.Eventually(t, "the CA from before", func(context.Context) error {
		if now := caSecret(t); !sharesCA(before, now) {
			return errors.New("another one signs")
		}
		return nil
	})
}

// rotateWithoutEnd requests the next rotation as soon as one has begun, although leaves of
// old CAs are still valid. The CA bundle stays small.
func (d *drill) rotateWithoutEnd(t *testing.T, lasts time.Duration) {
	biggest := 0
	before := d.observer.count().authorities
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		annotateCASecret(t, certs.RotateAnnotation, "now")
		bundle, err := certs.ParseBundle(caSecret(t).Data["ca.crt"])
		if err != nil {
			t.Fatal(err)
		}
		biggest = max(biggest, len(bundle))
		<-time.After(100 * time.Millisecond)
	}
	testkit.Report(t, "asked to rotate ten times a second for %s: CAs=%d trusted at a time=%d", lasts, d.observer.count().authorities-before, biggest)
	if biggest > 10 {
		t.Errorf("%d CAs were trusted at a time, want 10 at most: the one that signs, the next one and 8 former ones", biggest)
	}
}

func caSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret, err := clients[0].CoreV1().Secrets(deploy.Namespace).Get(t.Context(), deploy.CertSecret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// updateCASecret changes the Secret, even if another client writes it at the same time.
func updateCASecret(t *testing.T, change func(*corev1.Secret)) {
	t.Helper()
	await.Eventually(t, "writing the CA Secret", func(ctx context.Context) error {
		secret := caSecret(t)
		change(secret)
		_, err := clients[0].CoreV1().Secrets(deploy.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
		return err
	})
}

func annotateCASecret(t *testing.T, key, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	_, err := clients[0].CoreV1().Secrets(deploy.Namespace).Patch(t.Context(), deploy.CertSecret, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// sharesCA reports whether the CA that signs now is the one that signed before, or the one
// that was to sign next: a rotation may have gone on meanwhile.
func sharesCA(before, now *corev1.Secret) bool {
	signing := now.Data[corev1.TLSCertKey]
	return bytes.Equal(signing, before.Data[corev1.TLSCertKey]) || bytes.Equal(signing, before.Data["next.crt"])
}

// awaitEvent waits until an event about the Secret has that reason.
func awaitEvent(t *testing.T, reason string) {
	t.Helper()
	await.Eventually(t, "event "+reason, func(ctx context.Context) error {
		events, err := clients[0].EventsV1().Events(deploy.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == reason && event.Regarding.Kind == "Secret" && event.Regarding.Name == deploy.CertSecret {
				return nil
			}
		}
		return fmt.Errorf("it is none of %d events", len(events.Items))
	})
}
