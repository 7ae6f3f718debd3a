package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	certmanagermetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// certManagerVariable is the environment variable with the path of cert-manager's controllers.
const certManagerVariable = "CERTMANAGER"

// certManaged is a cluster of its own whose operator serves what a real cert-manager issues.
type certManaged struct {
	*deploy.Operator
	api client.WithWatch
}

// startCertManager applies the CustomResourceDefinitions that come with cert-manager's module, and runs its
// controllers until the cluster ends.
func (i *certManaged) startCertManager(t *testing.T) {
	t.Helper()
	source, err := exec.CommandContext(t.Context(), "go", "-C", filepath.Join(deploy.Root(), "test/ecosystem"), "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager").Output()
	if err != nil {
		t.Fatal(err)
	}
	crds := filepath.Join(strings.TrimSpace(string(source)), "deploy/crds")
	testkit.Kubectl(t, i.Cluster, "", "apply", "--server-side", "-f", crds)
	if err := i.Cluster.Established(t.Context(), "-f", crds); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the new kinds", func(ctx context.Context) error { // API servers serve a kind a little after the CRD is Established
		_, err := i.Cluster.Kubectl(ctx, "", "get", "issuers.cert-manager.io,certificates.cert-manager.io", "--all-namespaces")
		return err
	})
	stand.RunProcess(t, stand.Command{Name: "cert-manager", Path: os.Getenv(certManagerVariable), Args: []string{"--kubeconfig", i.Cluster.Kubeconfig}, LogDir: filepath.Join(i.Cluster.Dir, "logs")})
}

// start starts two replicas, numbered from first.
func (i *certManaged) start(t *testing.T, first int, args ...string) (started []*deploy.Replica) {
	t.Helper()
	for number := first; number < first+2; number++ {
		replica, err := i.StartReplicaUnready(t.Context(), number, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(replica.Process.Stop)
		started = append(started, replica)
	}
	return started
}

// serve waits until replicas are ready, and has API servers call them.
func (i *certManaged) serve(t *testing.T, replicas []*deploy.Replica) {
	t.Helper()
	for _, replica := range replicas {
		if err := errors.Join(replica.AwaitReady(t.Context()), i.AddEndpoint(t.Context(), replica)); err != nil {
			t.Fatal(err)
		}
	}
}

// during makes calls of every kind while do runs. No call may fail.
func (i *certManaged) during(t *testing.T, do func()) {
	t.Helper()
	calls := callAll(t, []kubernetes.Interface{i.Clients}, nil, metav1.NamespaceDefault, "called")
	calls.repeat("creating a Pod", i.createPod)
	do()
	await.Eventually(t, "calls enough to show something", func(context.Context) error {
		if made := calls.count().made; made < 10 {
			return fmt.Errorf("%d were made", made)
		}
		return nil
	})
	calls.end().check(t)
}

func (i *certManaged) createPod(ctx context.Context) error {
	return testkit.TryPod(ctx, i.Clients, metav1.NamespaceDefault, "called", "")
}

// The operator is installed with the rights of config/certmanager/operator, before cert-manager is. A replica's
// readiness says what is missing, at each step. Then the operator serves what cert-manager issues, also while the
// CA and the leaf are renewed. Then the cluster changes to config/certmanager/cainjector: cainjector publishes
// the CA, a kubelet mounts the Secret, and the operator only reads. No call fails meanwhile.
func TestCertManager(t *testing.T) {
	operator.NeedReplicas(t)
	if os.Getenv(certManagerVariable) == "" {
		t.Skip("SKIP: there is no cert-manager: make chaos builds it and sets " + certManagerVariable)
	}
	c := testkit.StartCluster(t, stand.Options{})
	o, err := deploy.InstallProfile(t.Context(), c, deploy.CertManager)
	api, clientErr := testkit.NewClient(c, certs.AddToScheme)
	program, buildErr := deploy.QuickProgram()
	if err := errors.Join(err, clientErr, buildErr); err != nil {
		t.Fatal(err)
	}
	o.Amend = func(c *stand.Command) { c.Path = program }
	i := &certManaged{o, api}

	declaring := i.start(t, 1, "--cert-mode=cert-manager", "--drain-grace=5s")
	expectReason(t, declaring[1], "`kubectl describe -n sidecarset-system issuers,certificates` says what is missing")
	await.Eventually(t, "the leader to say that cert-manager is missing", func(context.Context) error {
		if !strings.Contains(declaring[0].Log()+declaring[1].Log(), "cert-manager's CustomResourceDefinitions are not installed; install cert-manager or use --cert-mode=self") {
			return errors.New("no replica says so")
		}
		return nil
	})
	i.startCertManager(t)
	i.serve(t, declaring)
	await.Eventually(t, "a SidecarSet", func(ctx context.Context) error {
		return i.api.Create(ctx, testkit.NewPatientSet("called", metav1.NamespaceDefault))
	})
	await.Eventually(t, "a Pod with a sidecar", i.createPod)
	if err := i.bundled(t.Context()); err != nil {
		t.Error(err)
	}
	err = i.api.Get(t.Context(), client.ObjectKey{Namespace: deploy.Namespace, Name: deploy.CertSecret}, &corev1.Secret{})
	if client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the Secret of self-managed certificates is there: %v", err)
	}
	i.during(t, func() { i.reissueAll(t) })

	testkit.Kubectl(t, c, "", "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(deploy.Root(), "test/overlays/cert-manager-cainjector"))
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
	for _, replica := range append(declaring, reading...) {
		for line := range strings.Lines(replica.Log()) {
			if strings.Contains(line, "forbidden") {
				t.Errorf("%s lacks a right: %s", replica.Name, line)
			}
		}
	}
	for _, replica := range reading {
		if strings.Contains(replica.Log(), "Published the CA bundle") {
			t.Errorf("%s wrote a bundle that cainjector looks after", replica.Name)
		}
	}
	i.applyOverlays(t)
}

// reissueAll has cert-manager renew the CA, with the same key, and the serving certificate, and waits until
// API servers trust the renewed CA.
func (i *certManaged) reissueAll(t *testing.T) {
	t.Helper()
	i.reissue(t, "sidecarset-ca")
	i.reissue(t, "sidecarset-serving")
	await.Eventually(t, "the renewed CA in the bundle", i.bundled)
}

// bundled returns an error unless the CA of the serving certificate is published.
func (i *certManaged) bundled(ctx context.Context) error {
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
func (i *certManaged) reissue(t *testing.T, name string) {
	t.Helper()
	certificate := &certmanagerv1.Certificate{}
	revision := 0
	await.Eventually(t, "asking for Certificate "+name, func(ctx context.Context) error {
		if err := i.api.Get(ctx, client.ObjectKey{Namespace: deploy.Namespace, Name: name}, certificate); err != nil {
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
		return i.api.Status().Update(ctx, certificate)
	})
	await.Eventually(t, "issuing Certificate "+name, func(ctx context.Context) error {
		if err := i.api.Get(ctx, client.ObjectKeyFromObject(certificate), certificate); err != nil {
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
func (i *certManaged) mount(t *testing.T, dir string) {
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

// applyOverlays builds the documented overlays on top of either profile, and has the API server accept them.
func (i *certManaged) applyOverlays(t *testing.T) {
	overlays := map[string]struct{ annotated, rights int }{"cert-manager": {0, 3}, "cert-manager-cainjector": {3, 0}}
	for overlay, wants := range overlays {
		for profile, processes := range map[string]int{"../../default": 1, "../hardened": 2} {
			t.Run(overlay+" on "+profile, func(t *testing.T) {
				manifests := i.buildOverlay(t, overlay, profile)
				testkit.Kubectl(t, i.Cluster, manifests, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
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
func (i *certManaged) buildOverlay(t *testing.T, overlay, profile string) string {
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
	return testkit.Kubectl(t, i.Cluster, "", "kustomize", dir)
}
