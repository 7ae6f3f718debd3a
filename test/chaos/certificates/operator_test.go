package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/sidecarset/operator/test/conformance"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// installation is the operator on a cluster of its own, with cert-manager.
type installation struct {
	*deploy.Operator
	api      client.WithWatch
	replicas []*deploy.Replica
}

// install makes a cluster, with cert-manager's controllers if wanted, and the operator on it without a replica.
func install(t *testing.T, layout deploy.Layout) *installation {
	t.Helper()
	stand.NeedNamespace(t)
	c := testkit.StartCluster(t, stand.Options{})
	if err := errors.Join(installCertManager(t.Context(), c), startCertManager(t.Context(), c)); err != nil {
		t.Fatal(err)
	}
	o, err := deploy.InstallLayout(t.Context(), c, layout)
	program, buildErr := deploy.QuickProgram()
	if err := errors.Join(err, buildErr); err != nil {
		t.Fatal(err)
	}
	o.Amend = func(c *stand.Command) { c.Path = program }
	api, err := client.NewWithWatch(c.Config(), client.Options{Scheme: api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return &installation{Operator: o, api: api}
}

// start starts two replicas, with the rights of the layout, and waits until they serve.
func (i *installation) start(t *testing.T, args ...string) {
	t.Helper()
	for number := 1; number <= 2; number++ {
		replica, err := i.StartReplicaUnready(t.Context(), number, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(replica.Process.Stop)
		i.replicas = append(i.replicas, replica)
	}
	for _, replica := range i.replicas {
		if err := errors.Join(replica.AwaitReady(t.Context()), i.AddEndpoint(t.Context(), replica)); err != nil {
			t.Fatal(err)
		}
	}
	await.Eventually(t, "a SidecarSet", func(ctx context.Context) error {
		_, err := i.Cluster.Kubectl(ctx, sidecarSet, "apply", "-f", "-")
		return err
	})
	await.Eventually(t, "calls of every kind", i.call)
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

// call makes the API server call a replica by the operator's own entries: for a Pod, for a
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
func (i *installation) during(t *testing.T, call func(context.Context) error, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var calls atomic.Int64
	var failed []error
	wg.Go(func() {
		for pause := time.Tick(10 * time.Millisecond); ctx.Err() == nil; <-pause {
			calls.Add(1)
			if err := call(ctx); err != nil && ctx.Err() == nil {
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

// The operator works with only the rights of config/certmanager/operator.
func TestOperatorDeclaresToCertManager(t *testing.T) {
	i := install(t, deploy.CertManager)
	i.start(t, "--cert-mode=cert-manager")
	serving := &corev1.Secret{}
	if err := i.api.Get(t.Context(), client.ObjectKey{Namespace: deploy.Namespace, Name: "sidecarset-serving"}, serving); err != nil {
		t.Fatal(err)
	}
	bundle, err := i.Bundle(t.Context())
	if err != nil || !bytes.Equal(bundle, serving.Data["ca.crt"]) {
		t.Errorf("what is published is not what cert-manager made: %v", err)
	}
	err = i.api.Get(t.Context(), client.ObjectKey{Namespace: deploy.Namespace, Name: deploy.CertSecret}, &corev1.Secret{})
	if client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the Secret of self-managed certificates is there: %v", err)
	}
	i.checkRights(t)
}

// cainjector publishes the CA, a kubelet mounts the Secret, and the operator only reads. The leaf
// and the CA are renewed while the API server makes calls. A replica serves the new leaf when
// it is five minutes old; the conformance tests show that.
func TestOperatorWithCAInjector(t *testing.T) {
	i := install(t, deploy.CertManagerInjector)
	dir := t.TempDir()
	i.mount(t, dir)
	i.start(t, "--cert-mode=files", "--cert-dir="+dir, "--cert-publish-bundle=false")

	bundle, err := i.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i.during(t, i.call, func() {
		reissue(t, i.api, deploy.Namespace, "sidecarset-ca") // with the same key
		reissue(t, i.api, deploy.Namespace, "sidecarset-serving")
		await.Eventually(t, "another CA in the bundle", func(ctx context.Context) error {
			now, err := i.Bundle(ctx)
			if err == nil && bytes.Equal(now, bundle) {
				err = errors.New("it is the same")
			}
			return err
		})
		for _, replica := range i.replicas {
			await.Eventually(t, "readiness", replica.Ready)
		}
	})
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := i.api.Get(t.Context(), client.ObjectKey{Name: deploy.MutatingConfiguration}, configuration); err != nil {
		t.Fatal(err)
	}
	for _, owner := range configuration.ManagedFields {
		if owner.Manager == certs.FieldOwner {
			t.Error("the operator wrote a bundle that cainjector looks after")
		}
	}
	i.checkRights(t)
}

// mount does what a kubelet does with the Secret of the serving certificate, until the test ends.
func (i *installation) mount(t *testing.T, dir string) {
	t.Helper()
	volume := &conformance.Volume{Dir: dir}
	last := ""
	update := func(ctx context.Context) error {
		secret := &corev1.Secret{}
		if err := i.api.Get(ctx, client.ObjectKey{Namespace: deploy.Namespace, Name: "sidecarset-serving"}, secret); err != nil {
			return err
		}
		if last != secret.ResourceVersion {
			last = secret.ResourceVersion
			volume.Write(t, secret.Data)
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

// A replica's readiness says what is wrong with cert-manager, at each step of its repair.
func TestCertManagerIsMissing(t *testing.T) {
	c := testkit.StartCluster(t, stand.Options{})
	api, err := client.NewWithWatch(c.Config(), client.Options{Scheme: api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	none := certs.Targets{Validating: "none", Definition: "none"}
	serving, err := certs.Assemble(api, startCache(t, none), loopback, certs.Options{
		Mode: certs.ModeCertManager, Namespace: "default", Subject: certs.Subject{IPs: []net.IP{net.ParseIP(loopback)}}, Times: certs.DefaultTimes.Faster(deploy.Quicker),
	}, none)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, r := range append(serving.Leader, serving.Published, serving.Source) {
		wg.Go(func() {
			if err := r.Start(ctx); err != nil {
				t.Errorf("Start: %v", err)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	says := func(want string) {
		t.Helper()
		await.Eventually(t, "a reason", func(context.Context) error {
			if err := serving.Source.Ready(); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("ready: %w; want an error with %q", err, want)
			}
			return nil
		})
	}
	says("cert-manager's CustomResourceDefinitions are not installed; install cert-manager or use --cert-mode=self")
	if err := installCertManager(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	says("Issuer default/sidecarset-selfsigned is not ready: cert-manager has not said anything about it; does its controller run?")
	if err := startCertManager(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "a certificate", func(context.Context) error {
		_, err := serving.Source.GetCertificate(nil)
		return err
	})
}

// The documented overlays can be built on top of either layout, and the API server accepts them.
func TestOverlaysApply(t *testing.T) {
	needCertManager(t)
	// Namespaced objects need a Namespace, and a dry run does not create it.
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: deploy.Namespace}}
	if err := client.IgnoreAlreadyExists(api.Create(t.Context(), namespace)); err != nil {
		t.Fatal(err)
	}
	overlays := map[string]struct{ annotated, rights int }{"cert-manager": {0, 3}, "cert-manager-cainjector": {3, 0}}
	for overlay, wants := range overlays {
		for layout, processes := range map[string]int{"../../default": 1, "../hardened": 2} {
			t.Run(overlay+" on "+layout, func(t *testing.T) {
				manifests := buildOverlay(t, overlay, layout)
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

// buildOverlay builds an overlay on another layout, as the overlay's comment says.
func buildOverlay(t *testing.T, overlay, layout string) string {
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
	replaced := strings.NewReplacer("\n- ../../default\n", "\n- "+back+"/"+layout+"\n", "\n- ../../", "\n- "+back+"/../../").Replace(string(text))
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(replaced), 0o600); err != nil {
		t.Fatal(err)
	}
	manifests, err := cluster.Kubectl(t.Context(), "", "kustomize", dir)
	if err != nil {
		t.Fatal(err)
	}
	return manifests
}
