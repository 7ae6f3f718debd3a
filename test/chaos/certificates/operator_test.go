package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	certmanagermetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
)

// installation is the operator on a cluster.
type installation struct {
	*deploy.Operator
	api      client.WithWatch
	replicas []*deploy.Replica
}

// start starts two replicas, numbered from first.
func (i *installation) start(t *testing.T, first int, args ...string) (started []*deploy.Replica) {
	t.Helper()
	for number := first; number < first+2; number++ {
		replica, err := i.StartReplicaUnready(t.Context(), number, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(replica.Process.Stop)
		started = append(started, replica)
	}
	i.replicas = append(i.replicas, started...)
	return started
}

// serve waits until replicas are ready, and has API servers call them.
func (i *installation) serve(t *testing.T, replicas []*deploy.Replica) {
	t.Helper()
	for _, replica := range replicas {
		if err := errors.Join(replica.AwaitReady(t.Context()), i.AddEndpoint(t.Context(), replica)); err != nil {
			t.Fatal(err)
		}
	}
}

const sidecarSet = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: called}
spec:
  selector: {matchLabels: {call: "yes"}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  updateStrategy: {type: NotUpdate}
  containers:
  - {name: called, image: "example.com/sidecar:v1", podInjectPolicy: AfterAppContainer}
`

// call makes the API server call a replica by the webhooks of the operator: for a Pod, for a
// SidecarSet, and for conversions.
func (i *installation) call(ctx context.Context) error {
	if err := i.createPod(ctx); err != nil {
		return err
	}
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(schema.GroupVersionKind{Group: "apps.kruise.io", Version: "v1alpha1", Kind: "SidecarSet"})
	if err := i.api.Get(ctx, client.ObjectKey{Name: "called"}, set); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())
	return i.api.Patch(ctx, set, client.RawPatch(types.MergePatchType, patch), client.DryRunAll)
}

// createPod creates a Pod in a dry run, and returns an error unless it is injected.
func (i *installation) createPod(ctx context.Context) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "call-", Labels: map[string]string{"call": "yes"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "example.com/app:v1"}}},
	}
	if err := i.api.Create(ctx, pod, client.DryRunAll); err != nil {
		return err
	}
	if len(pod.Spec.Containers) != 2 {
		return errors.New("the Pod has no sidecar")
	}
	return nil
}

// during makes calls, up to a hundred in a second, while do runs. No call may fail.
func (i *installation) during(t *testing.T, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var calls atomic.Int64
	var failed []error
	wg.Go(func() {
		for pause := time.Tick(10 * time.Millisecond); ctx.Err() == nil; <-pause {
			calls.Add(1)
			if err := i.call(ctx); err != nil && ctx.Err() == nil {
				failed = append(failed, err)
			}
		}
	})
	do()
	await.Eventually(t, "calls enough to show something", func(context.Context) error {
		if made := calls.Load(); made < 10 {
			return fmt.Errorf("%d were made", made)
		}
		return nil
	})
	cancel()
	wg.Wait()
	t.Logf("%d calls, %d failed", calls.Load(), len(failed))
	if len(failed) > 0 {
		t.Errorf("%d of %d calls failed: %v", len(failed), calls.Load(), errors.Join(failed...))
	}
}

// checkRights fails if a replica lacked a right.
func (i *installation) checkRights(t *testing.T) {
	t.Helper()
	for _, replica := range i.replicas {
		log, err := os.ReadFile(replica.LogFile)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "forbidden") {
				t.Errorf("%s lacks a right: %s", replica.Name, line)
			}
		}
	}
}

// The operator is installed with the rights of config/certmanager/operator, before cert-manager is. A replica's
// readiness says what is missing, at each step. Then the operator serves what cert-manager issues, also while the
// CA and the leaf are renewed. Then the cluster changes to config/certmanager/cainjector: cainjector publishes
// the CA, a kubelet mounts the Secret, and the operator only reads. No call fails meanwhile.
func TestCertManager(t *testing.T) {
	stand.NeedNamespace(t)
	needCertManager(t)
	o, err := deploy.InstallProfile(t.Context(), cluster, deploy.CertManager)
	program, buildErr := deploy.QuickProgram()
	if err := errors.Join(err, buildErr); err != nil {
		t.Fatal(err)
	}
	o.Amend = func(c *stand.Command) { c.Path = program }
	i := &installation{Operator: o, api: api}

	declaring := i.start(t, 1, "--cert-mode=cert-manager", "--drain-grace=5s")
	expectReason(t, declaring[1], "`kubectl describe -n sidecarset-system issuers,certificates` says what is missing")
	await.Eventually(t, "the leader to say that cert-manager is missing", func(context.Context) error {
		if !strings.Contains(declaring[0].Log()+declaring[1].Log(), "cert-manager's CustomResourceDefinitions are not installed; install cert-manager or use --cert-mode=self") {
			return errors.New("no replica says so")
		}
		return nil
	})
	if err := installCertManager(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	if err := startCertManager(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	i.serve(t, declaring)
	await.Eventually(t, "a SidecarSet", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, sidecarSet, "apply", "-f", "-")
		return err
	})
	await.Eventually(t, "calls of every kind", i.call)
	i.wantBundle(t)
	err = i.api.Get(t.Context(), client.ObjectKey{Namespace: deploy.Namespace, Name: deploy.CertSecret}, &corev1.Secret{})
	if client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the Secret of self-managed certificates is there: %v", err)
	}
	i.during(t, func() { i.reissueAll(t) })
	i.checkRights(t)

	overlay := filepath.Join(deploy.Root(), "test/overlays/cert-manager-cainjector")
	if _, err := cluster.Kubectl(t.Context(), "", "apply", "--server-side", "--force-conflicts", "-k", overlay); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	i.mount(t, dir)
	reading := i.start(t, 3, "--cert-mode=files", "--cert-dir="+dir, "--cert-publish-bundle=false")
	i.during(t, func() {
		i.serve(t, reading)
		for _, replica := range declaring {
			if err := replica.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		i.reissueAll(t)
	})
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := i.api.Get(t.Context(), client.ObjectKey{Name: deploy.MutatingConfiguration}, configuration); err != nil {
		t.Fatal(err)
	}
	if configuration.Annotations["cert-manager.io/inject-ca-from"] == "" {
		t.Error("cainjector does not look after the bundle")
	}
	for _, replica := range reading {
		if log := replica.Log(); strings.Contains(log, "Published the CA bundle") {
			t.Errorf("%s wrote a bundle that cainjector looks after", replica.Name)
		}
	}
}

// reissueAll has cert-manager renew the CA, with the same key, and the serving certificate, and waits until
// API servers trust the renewed CA.
func (i *installation) reissueAll(t *testing.T) {
	t.Helper()
	reissue(t, i.api, deploy.Namespace, "sidecarset-ca")
	reissue(t, i.api, deploy.Namespace, "sidecarset-serving")
	await.Eventually(t, "the renewed CA in the bundle", i.bundled)
}

func (i *installation) wantBundle(t *testing.T) {
	t.Helper()
	if err := i.bundled(t.Context()); err != nil {
		t.Error(err)
	}
}

// bundled returns an error unless the CA of the serving certificate is published.
func (i *installation) bundled(ctx context.Context) error {
	serving := &corev1.Secret{}
	if err := i.api.Get(ctx, client.ObjectKey{Namespace: deploy.Namespace, Name: "sidecarset-serving"}, serving); err != nil {
		return err
	}
	bundle, err := i.Bundle(ctx)
	if err == nil && !bytes.Contains(bundle, serving.Data["ca.crt"]) {
		err = errors.New("what is published is not what cert-manager made")
	}
	return err
}

// reissue does what `cmctl renew` does, and waits for the outcome.
func reissue(t *testing.T, api client.Client, namespace, name string) {
	t.Helper()
	certificate := &certmanagerv1.Certificate{}
	revision := 0
	await.Eventually(t, "asking for Certificate "+name, func(ctx context.Context) error {
		if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, certificate); err != nil {
			return err
		}
		if certificate.Status.Revision == nil {
			return errors.New("nothing was issued yet")
		}
		revision = *certificate.Status.Revision
		now := metav1.Now()
		certificate.Status.Conditions = append(certificate.Status.Conditions, certmanagerv1.CertificateCondition{
			Type: certmanagerv1.CertificateConditionIssuing, Status: certmanagermetav1.ConditionTrue,
			Reason: "ManuallyTriggered", Message: "Certificate re-issuance manually triggered", LastTransitionTime: &now,
		})
		return api.Status().Update(ctx, certificate)
	})
	await.Eventually(t, "issuing Certificate "+name, func(ctx context.Context) error {
		if err := api.Get(ctx, client.ObjectKeyFromObject(certificate), certificate); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if certificate.Status.Revision == nil || *certificate.Status.Revision == revision {
			return fmt.Errorf("revision %d is still the last one: %+v", revision, certificate.Status.Conditions)
		}
		return nil
	})
}

// expectReason waits until the replica is not ready, and its check of the certificate says
// want.
func expectReason(t *testing.T, replica *deploy.Replica, want string) {
	t.Helper()
	await.Eventually(t, "the reason why "+replica.Name+" is not ready", func(ctx context.Context) error {
		code, says, err := replica.Readyz(ctx, "/certificate")
		if err == nil && (code == http.StatusOK || !strings.Contains(says, want)) {
			err = fmt.Errorf("it says %d: %s", code, says)
		}
		return err
	})
}

// mount does what a kubelet does with the Secret of the serving certificate, until the test ends.
func (i *installation) mount(t *testing.T, dir string) {
	t.Helper()
	last := ""
	update := func(ctx context.Context) error {
		secret := &corev1.Secret{}
		if err := i.api.Get(ctx, client.ObjectKey{Namespace: deploy.Namespace, Name: "sidecarset-serving"}, secret); err != nil {
			return err
		}
		if last != secret.ResourceVersion {
			last = secret.ResourceVersion
			return replaceFiles(dir, "..version-"+last, secret.Data)
		}
		return nil
	}
	await.Eventually(t, "a Secret to mount", update)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		ticks := time.NewTicker(500 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				if err := update(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("mounting: %v", err)
				}
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// replaceFiles replaces the files of a volume as a kubelet does: a link leads to another directory.
func replaceFiles(dir, version string, files map[string][]byte) error {
	errs := []error{os.Mkdir(filepath.Join(dir, version), 0o700)}
	for name, content := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, version, name), content, 0o600))
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
	}
	link := filepath.Join(dir, "..data")
	return errors.Join(append(errs, os.Symlink(version, link+"_tmp"), os.Rename(link+"_tmp", link))...)
}

// The documented overlays can be built on top of either profile, and the API server accepts them.
func TestOverlaysApply(t *testing.T) { // after TestCertManager, which installs cert-manager's kinds
	needCertManager(t)
	if err := installCertManager(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	// Namespaced objects need a Namespace, and a dry run does not create it.
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: deploy.Namespace}}
	if err := client.IgnoreAlreadyExists(api.Create(t.Context(), namespace)); err != nil {
		t.Fatal(err)
	}
	overlays := map[string]struct{ annotated, rights int }{"cert-manager": {0, 3}, "cert-manager-cainjector": {3, 0}}
	for overlay, wants := range overlays {
		for profile, processes := range map[string]int{"../../default": 1, "../hardened": 2} {
			t.Run(overlay+" on "+profile, func(t *testing.T) {
				manifests := buildOverlay(t, overlay, profile)
				if out, err := cluster.Kubectl(t.Context(), manifests, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				for want, count := range map[string]int{
					"cert-manager.io/inject-ca-from":       wants.annotated,
					"--cert-mode=":                         processes,
					"--cert-secret=":                       processes,    // has no effect in these modes
					"\n  - sidecarset-webhook-certs":       0,            // no right on that Secret
					"name: sidecarset-certificates-leader": wants.rights, // in a Role, in its binding, and in the binding's reference
				} {
					if got := strings.Count(manifests, want); got != count {
						t.Errorf("%q occurs %d times, want %d", want, got, count)
					}
				}
			})
		}
	}
}

// buildOverlay builds an overlay on another profile, as the overlay's comment says.
func buildOverlay(t *testing.T, overlay, profile string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(deploy.Root(), "config/overlays", overlay)
	text, err := os.ReadFile(filepath.Join(here, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	back, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	replaced := strings.NewReplacer("\n- ../../default\n", "\n- "+back+"/"+profile+"\n", "\n- ../../", "\n- "+back+"/../../").Replace(string(text))
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(replaced), 0o600); err != nil {
		t.Fatal(err)
	}
	manifests, err := cluster.Kubectl(t.Context(), "", "kustomize", dir)
	if err != nil {
		t.Fatal(err)
	}
	return manifests
}
