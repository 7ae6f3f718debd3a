package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// forgetCAs removes the CA Secret and all CA bundles. Otherwise a replica of the next test would wait for
// two minutes until it is ready, because the CAs have changed a short while ago.
func forgetCAs(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), await.Patience)
	defer cancel()
	err := await.Until(ctx, func(ctx context.Context) error {
		errs := []error{client.IgnoreNotFound(clients[0].CoreV1().Secrets(deploy.Namespace).Delete(ctx, deploy.CertSecret, metav1.DeleteOptions{}))}
		mutating, validating, err := configurations(ctx)
		if err != nil {
			return err
		}
		for i := range mutating {
			for at := range mutating[i].Webhooks {
				mutating[i].Webhooks[at].ClientConfig.CABundle = nil
			}
			errs = append(errs, api.Update(ctx, &mutating[i]))
		}
		for at := range validating.Webhooks {
			validating.Webhooks[at].ClientConfig.CABundle = nil
		}
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		crd.SetName(deploy.CRD)
		none := []byte(`{"spec":{"conversion":{"webhook":{"clientConfig":{"caBundle":null}}}}}`)
		return errors.Join(append(errs, api.Update(ctx, validating), api.Patch(ctx, crd, client.RawPatch(types.MergePatchType, none)))...)
	})
	if err != nil {
		t.Errorf("removing the CAs: %v", err)
	}
}

// configurations reads the operator's webhook configurations.
func configurations(ctx context.Context) ([]admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	mutating, err := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=sidecarset"})
	if err != nil {
		return nil, nil, err
	}
	validating, err := clients[0].AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "sidecarset-validating-webhook", metav1.GetOptions{})
	return mutating.Items, validating, err
}

// CAs change, and the CA Secret is deleted, damaged and restored. Meanwhile Pods are created, objects
// converted and SidecarSets admitted, all through two API servers, and the test calls every replica
// with a handshake for each call.
func TestRotationLosesNoCall(t *testing.T) {
	program, err := deploy.QuickProgram()
	if err != nil {
		t.Fatal(err)
	}
	amendOperator(t, func(c *stand.Command) { c.Path = program })
	t.Cleanup(func() { forgetCAs(t) })
	f := startReplicas(t, 2)
	d := startDrill(t, f, "rotating")
	first := caSecret(t)
	secrets := clients[0].CoreV1().Secrets(deploy.Namespace)
	for _, change := range []struct {
		name   string
		rounds int
		begin  func()
	}{
		{"a rotation", testkit.Scaled(1, 20), func() { rotateSoon(t) }},
		{"the Secret is deleted", 1, func() {
			if err := secrets.Delete(t.Context(), deploy.CertSecret, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
		{"keys are garbage", 1, func() {
			updateCASecret(t, func(secret *corev1.Secret) { secret.Data[corev1.TLSPrivateKeyKey] = []byte("garbage") })
		}},
		{"a Secret of long ago is restored", 1, func() {
			updateCASecret(t, func(secret *corev1.Secret) { secret.Data = first.Data })
		}},
	} {
		for range change.rounds {
			before, begun, created := caSecret(t), time.Now(), d.load.Figures().Created
			change.begin()
			d.followed(t, before)
			await.Eventually(t, "Pods enough to show something", func(context.Context) error {
				if made, want := d.load.Figures().Created-created, testkit.Scaled(50, 250); made < want {
					return fmt.Errorf("%d of %d", made, want)
				}
				return nil
			})
			figures := d.load.Figures()
			testkit.Report(t, "%s: took=%s so far: %s; other calls: %s", change.name, testkit.Rounded(time.Since(begun)), &figures, d.callers.count())
		}
	}
	d.end(t)
}

// rotateSoon has the leader rotate the CA when the next one has been published for some time.
func rotateSoon(t *testing.T) {
	t.Helper()
	next := deploy.NextCA(t, certs.DefaultTimes.Remove/deploy.Quicker)
	updateCASecret(t, func(secret *corev1.Secret) {
		a := certs.Decode(secret)
		a.Next = next
		if err := a.Encode(secret); err != nil {
			t.Fatal(err)
		}
	})
}

// drill is a fleet under load while its certificates change.
type drill struct {
	load    *testkit.Running
	callers *callers
	fleet   *fleet
}

func startDrill(t *testing.T, f *fleet, sidecarSet string) *drill {
	namespace := testkit.Namespace(t, api, nil)
	applySidecarSet(t, namespace, sidecarSet)
	awaitInjection(t, f, namespace, sidecarSet, 5)
	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels(sidecarSet), Sidecars: []string{sidecarSet}, Rate: 25}
	return &drill{load.Start(t.Context()), callAll(t, clients, f.replicas, namespace, sidecarSet), f}
}

// followed waits until another CA than before signs, all replicas serve leaves of it, and every bundle
// has exactly the CAs of the Secret.
func (d *drill) followed(t *testing.T, before *corev1.Secret) {
	t.Helper()
	var now certs.Authority
	await.Eventually(t, "another CA that signs", func(ctx context.Context) error {
		secret, err := clients[0].CoreV1().Secrets(deploy.Namespace).Get(ctx, deploy.CertSecret, metav1.GetOptions{})
		if err == nil && bytes.Equal(secret.Data[corev1.TLSCertKey], before.Data[corev1.TLSCertKey]) {
			err = errors.New("it is the same")
		}
		now = certs.Decode(secret)
		return err
	})
	for _, replica := range d.fleet.replicas {
		await.Eventually(t, "a leaf of the CA that signs", func(ctx context.Context) error {
			leaf, err := replica.Leaf(ctx)
			if err == nil && !bytes.Equal(leaf.AuthorityKeyId, now.Current.Certificate.SubjectKeyId) {
				err = errors.New(replica.Name + " serves one of another")
			}
			return err
		})
	}
	await.Eventually(t, "the CAs of the Secret, and no others, in every bundle", func(ctx context.Context) error {
		bundles, err := everyBundle(ctx)
		for place, bundle := range bundles {
			if !bytes.Equal(bundle, certs.EncodeBundle(now.CAs())) {
				err = errors.Join(err, errors.New(place+" has others"))
			}
		}
		return err
	})
}

// everyBundle reads what API servers trust, by place.
func everyBundle(ctx context.Context) (map[string][]byte, error) {
	mutating, validating, err := configurations(ctx)
	if err != nil {
		return nil, err
	}
	bundles := map[string][]byte{validating.Name: validating.Webhooks[0].ClientConfig.CABundle}
	for _, c := range mutating {
		for _, w := range c.Webhooks {
			bundles[c.Name+" "+w.Name] = w.ClientConfig.CABundle
		}
	}
	if len(bundles) < 18 { // the shards have a probe each
		return nil, fmt.Errorf("there are %d", len(bundles))
	}
	return bundles, nil
}

// end reports, and fails the test if a call has failed.
func (d *drill) end(t *testing.T) {
	figures, calls := d.load.Stop(), d.callers.end()
	testkit.Report(t, "replicas=%d rate=%d %s; other calls: %s", len(d.fleet.replicas), d.load.Load.Rate, &figures, calls)
	check(t, figures)
	calls.check(t)
	for _, replica := range d.fleet.replicas {
		if err := replica.Ready(t.Context()); err != nil {
			t.Errorf("%s is not ready: %v", replica.Name, err)
		}
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
