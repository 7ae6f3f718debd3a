package chaos

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// While no replica leads, the test empties the CA bundle of one object, or puts another
// bundle there. A copy of one of the operator's objects is present all the time. Replicas
// answer the calls that API servers make because of the other objects.
func TestSpoiledBundleTakesNoReplicaOut(t *testing.T) {
	useQuickOperator(t)
	controllers := startControllers(t, 1, fastLeases...)
	webhooks := startReplicas(t, 2, "--role=webhook")
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "spoiled")
	awaitInjection(t, webhooks, namespace, "spoiled", 5)
	copyPodConfiguration(t)

	unready := watchReadiness(t, webhooks.replicas)
	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("spoiled"), Sidecars: []string{"spoiled"}, Rate: 20}
	foreign, err := certs.IssueCA("foreign", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, bundle := range map[string][]byte{"emptied": nil, "foreign": certs.EncodeBundle([]*x509.Certificate{foreign.Certificate})} {
		controllers.kill()
		running := load.Start(t.Context())
		good := validatingBundle(t)
		setValidatingBundle(t, bundle)
		awaitAnswers(t, running, testkit.Scaled(60, 600))
		controllers.revive(t)
		begin := time.Now()
		await.Eventually(t, "the bundle that was there", func(context.Context) error {
			controllers.revive(t)
			if !bytes.Equal(validatingBundle(t), good) {
				return errors.New("it is another one")
			}
			return nil
		})
		figures := running.Stop()
		testkit.Report(t, "%s: mended %s after a leader was started; %s", name, testkit.Rounded(time.Since(begin)), &figures)
		check(t, figures)
	}

	// The copy does not prevent the rotation of the CA.
	running := load.Start(t.Context())
	before := caSecret(t)
	rotateSoon(t)
	await.Eventually(t, "another CA that signs", func(context.Context) error {
		controllers.revive(t)
		if bytes.Equal(caSecret(t).Data[corev1.TLSCertKey], before.Data[corev1.TLSCertKey]) {
			return errors.New("the same one signs")
		}
		return nil
	})
	figures := running.Stop()
	testkit.Report(t, "rotation beside a copy: %s", &figures)
	check(t, figures)
	unready()
}

// watchReadiness asks each replica ten times a second whether it is ready, until the
// returned function is called. That function fails the test if a replica was not ready.
func watchReadiness(t *testing.T, replicas []*deploy.Replica) (end func()) {
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	var asking sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	asked := 0
	for _, replica := range replicas {
		asking.Go(func() {
			ticks := time.NewTicker(100 * time.Millisecond)
			defer ticks.Stop()
			for {
				err := replica.Ready(ctx)
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				asked++
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %s: %w", time.Now().Format(time.StampMilli), replica.Name, err))
				}
				mu.Unlock()
				select {
				case <-ctx.Done():
					return
				case <-ticks.C:
				}
			}
		})
	}
	return func() {
		t.Helper()
		stop()
		asking.Wait()
		testkit.Report(t, "readiness: asked=%d not ready=%d", asked, len(errs))
		if len(errs) > 0 {
			t.Errorf("replicas were not ready %d times of %d, at first: %v", len(errs), asked, errs[0])
		}
	}
}

// copyPodConfiguration creates an object with the label of the entry objects. Its entry
// selects nothing.
func copyPodConfiguration(t *testing.T) {
	t.Helper()
	none := &metav1.LabelSelector{MatchLabels: map[string]string{"selects": "nothing"}}
	object := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "copy-of-" + entry.ConfigurationName(0), Labels: map[string]string{entry.LabelConfiguration: "true"}},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "copy.sidecarset.io", ObjectSelector: none, AdmissionReviewVersions: []string{"v1"},
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), FailurePolicy: new(admissionregistrationv1.Ignore),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "another"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
	configurations := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := configurations.Delete(context.WithoutCancel(t.Context()), object.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

const validatingConfiguration = "sidecarset-validating-webhook"

// validatingBundle is the CA bundle with which API servers call the validating webhook of
// SidecarSets.
func validatingBundle(t *testing.T) []byte {
	t.Helper()
	object, err := clients[0].AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), validatingConfiguration, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object.Webhooks[0].ClientConfig.CABundle
}

func setValidatingBundle(t *testing.T, bundle []byte) {
	t.Helper()
	await.Eventually(t, "writing a CA bundle", func(ctx context.Context) error {
		configurations := clients[0].AdmissionregistrationV1().ValidatingWebhookConfigurations()
		object, err := configurations.Get(ctx, validatingConfiguration, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range object.Webhooks {
			object.Webhooks[i].ClientConfig.CABundle = bundle
		}
		_, err = configurations.Update(ctx, object, metav1.UpdateOptions{})
		return err
	})
}
