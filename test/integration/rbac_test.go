package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// The operator does everything that it can do, with the installed ServiceAccounts, while the
// API server keeps an audit log. A right that was granted and not used is one too many. A
// refusal means that a right is missing. The layout is the one that splits the roles: the other
// binds the same roles to one account.
func usesExactlyItsRights(t *testing.T) {
	needServer(t, 33) // the operator resizes a Pod
	s := &scenario{installation: installApart(t, deploy.Hardened)}
	s.run(t)
	defer expectNoRefusal(t, s.installation)
	granted := rightsOf(t)
	await.Within(t, rolloutPatience, "a use of every right", func(context.Context) error {
		if idle := unused(t, granted, requestsOf(t, s.installation)); len(idle) > 0 {
			return fmt.Errorf("%d are unused; remove them, or extend the scenario, or list them as rare with a reason:\n%s", len(idle), strings.Join(idle, "\n"))
		}
		return nil
	})
}

func expectNoRefusal(t *testing.T, i *installation) {
	t.Helper()
	for _, q := range requestsOf(t, i) {
		if q.denied {
			t.Errorf("%s may not %s %s.%s: %s", q.account, q.verb, q.resource, q.group, q.uri)
		}
	}
}

// scenario makes an operator do everything.
type scenario struct {
	*installation
	webhook, controller *deploy.Replica
}

func (s *scenario) run(t *testing.T) {
	// The roles wait for each other: one for a published CA bundle, the other for
	// conversions that work.
	s.webhook = s.StartApart(t, 44, "--role=webhook", "--requester-check=enforce")
	s.controller = s.StartApart(t, 45, "--role=controller")
	if err := errors.Join(s.webhook.AwaitReady(t.Context()), s.AddEndpoint(t.Context(), s.webhook)); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitCalled(t, api)
	for _, step := range []func(*testing.T){s.inject, s.require, s.conflict, s.revise, s.roll, s.askForEverything, s.repair, s.lose, s.forget, s.scrape, s.uninstall, s.leave} {
		step(t)
	}
}

func (s *scenario) sidecarSet(t *testing.T, name, spec string, annotations map[string]string) *unstructured.Unstructured {
	t.Helper()
	set := newSidecarSet(t, "default", spec)
	set.SetGenerateName("")
	set.SetName(name)
	set.SetAnnotations(annotations)
	if err := api.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	return set
}

// awaitStatus waits until check accepts the status of SidecarSet log.
func (s *scenario) awaitStatus(t *testing.T, what string, check func(appsv1beta1.SidecarSetStatus) bool) (status appsv1beta1.SidecarSetStatus) {
	t.Helper()
	await.Within(t, rolloutPatience, what, func(ctx context.Context) error {
		set, err := testkit.Get(ctx, api, "log")
		if status = set.Status; err == nil && !check(status) {
			err = fmt.Errorf("the status is %+v", status)
		}
		return err
	})
	return status
}

// inject makes the operator inject a Pod and count it.
func (s *scenario) inject(t *testing.T) {
	t.Helper()
	s.sidecarSet(t, "log", requesterSpec+inNamespace+"revisionHistoryLimit: 1\nupdateStrategy: {type: NotUpdate}\n", nil) // so that the Pod keeps its revision in use
	await.Within(t, rolloutPatience, "an injected Pod", func(ctx context.Context) error {
		p := pod("default", "", "app=web")
		p.GenerateName = "web-"
		if err := api.Create(ctx, p); err != nil {
			return err
		}
		if got := strings.Join(testkit.ContainerNames(p.Spec.Containers), " "); got != "side app" {
			return fmt.Errorf("the containers are %s", got)
		}
		return nil
	})
	s.awaitStatus(t, "the Pod being counted", func(status appsv1beta1.SidecarSetStatus) bool {
		return status.MatchedPods > 0 && status.UpdatedPods > 0
	})
}

// require makes the leader read the policy for required SidecarSets.
func (s *scenario) require(t *testing.T) {
	t.Helper()
	policy := filepath.Join(deploy.Root(), "config/required")
	testkit.Kubectl(t, cluster, "", "apply", "--server-side", "-k", policy)
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "-k", policy); err != nil {
			t.Error(err)
		}
	})
	testkit.Kubectl(t, cluster, "", "label", "sidecarset", "log", appsv1beta1.LabelRequired+"=true")
	s.awaitStatus(t, "the condition Required", func(status appsv1beta1.SidecarSetStatus) bool {
		c := meta.FindStatusCondition(status.Conditions, appsv1beta1.ConditionRequired)
		return c != nil && c.Reason == appsv1beta1.ReasonPolicyBound
	})
}

// conflict makes a replica refuse a Pod, and waits for the replica's Event about it.
func (s *scenario) conflict(t *testing.T) {
	t.Helper()
	p := pod("default", "clash", "app=web")
	p.Spec.Containers[0].Name = "side"
	if err := api.Create(t.Context(), p); !apierrors.IsInvalid(err) {
		t.Fatalf("creating a Pod with a container of the sidecar's name: %v", err)
	}
	s.awaitEvent(t, appsv1beta1.ReasonInjectionConflict)
}

// awaitEvent waits for an Event about any SidecarSet.
func (s *scenario) awaitEvent(t *testing.T, reason string) {
	t.Helper()
	await.Within(t, rolloutPatience, "an Event "+reason, func(ctx context.Context) error {
		text, err := cluster.Kubectl(ctx, "", "get", "events", "-n", "default", "-o", "name", "--field-selector", "reason="+reason)
		if err == nil && text == "" {
			err = errors.New("there is none")
		}
		return err
	})
}

// revise changes the content to new and to earlier ones, so that the leader records revisions,
// deletes them and gives them new numbers.
func (s *scenario) revise(t *testing.T) {
	t.Helper()
	before := s.awaitStatus(t, "a status", func(appsv1beta1.SidecarSetStatus) bool { return true }).LatestRevision
	for _, version := range []string{"v2", "v1", "v3", "v4"} {
		s.change(t, fmt.Sprintf(`{"spec": {"containers": [{"name": "side", "image": "example.com/side:%s"}]}}`, version))
		before = s.awaitStatus(t, "the revision of "+version, func(status appsv1beta1.SidecarSetStatus) bool {
			return status.LatestRevision != before
		}).LatestRevision
	}
}

// change patches SidecarSet log.
func (s *scenario) change(t *testing.T, patch string) {
	t.Helper()
	testkit.Kubectl(t, cluster, "", "patch", "sidecarset", "log", "--type=merge", "-p", patch)
}

// askForEverything makes webhooks use each of their live look-ups.
func (s *scenario) askForEverything(t *testing.T) {
	t.Helper()
	allowAnnotations(t)
	// A canary's base, the whitelist, recorded revisions, and labels of Namespaces.
	s.sidecarSet(t, "canary", strings.Replace(requesterSpec, "app: web", "app: web, track: canary", 1)+inNamespace+
		"updateStrategy: {type: NotUpdate}\npatchPodMetadata: [{annotations: {example.com/a: b}, patchPolicy: Retain}]\n",
		map[string]string{appsv1beta1.AnnotationCanary: "true", appsv1beta1.AnnotationBase: "log"})
	latest := s.awaitStatus(t, "a status", func(appsv1beta1.SidecarSetStatus) bool { return true }).LatestRevision
	s.change(t, fmt.Sprintf(`{"spec": {"injectionStrategy": {"revision": {"revisionName": %q}}}}`, latest))
	labelled := s.sidecarSet(t, "labelled", strings.Replace(requesterSpec, "app: web", "app: labelled", 1)+"namespaceSelector: {matchLabels: {team: a}}\n", nil)
	await.Within(t, rolloutPatience, "a look at a Namespace that no snapshot knows", func(ctx context.Context) error {
		// No Namespace has that name, so a replica that knows the SidecarSet answers with an
		// error.
		err := s.webhook.Injects(ctx, labelled.GetName(), "nowhere", map[string]string{"app": "labelled"})
		if err != nil && strings.Contains(err.Error(), "refuses") {
			return nil
		}
		return fmt.Errorf("it ended with %w", err)
	})
}

// repair makes the leader rotate the CA, make its Secret again, and mend it.
func (s *scenario) repair(t *testing.T) {
	t.Helper()
	secrets := s.Clients.CoreV1().Secrets(deploy.Namespace)
	before := s.bundle(t.Context())
	rotated := deploy.NextCA(t, 0)
	await.Within(t, rolloutPatience, "a next CA that is due", func(ctx context.Context) error {
		secret, err := secrets.Get(ctx, deploy.CertSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		a := certs.Decode(secret)
		a.Next = rotated
		if err := a.Encode(secret); err != nil {
			return err
		}
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		return err
	})
	await.Within(t, rolloutPatience, "the rotation", func(ctx context.Context) error {
		secret, err := secrets.Get(ctx, deploy.CertSecret, metav1.GetOptions{})
		if err == nil && !certs.Decode(secret).Current.Certificate.Equal(rotated.Certificate) {
			err = errors.New("another one signs")
		}
		return err
	})
	await.Within(t, rolloutPatience, "the next CA in the entries", func(ctx context.Context) error {
		if now := s.bundle(ctx); now == "" || now == before {
			return errors.New("there are none, or they have the bundle of before")
		}
		return nil
	})
	if err := secrets.Delete(t.Context(), deploy.CertSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.Within(t, rolloutPatience, "a garbage key in the Secret", func(ctx context.Context) error {
		secret, err := secrets.Get(ctx, deploy.CertSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		secret.Data[corev1.TLSPrivateKeyKey] = []byte("garbage")
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		return err
	})
	await.Within(t, rolloutPatience, "another pair", func(ctx context.Context) error {
		secret, err := secrets.Get(ctx, deploy.CertSecret, metav1.GetOptions{})
		if err == nil && certs.Decode(secret).Current.Key == nil {
			err = errors.New("the key is garbage")
		}
		return err
	})
}

// bundle is the CA bundle of a Pod webhook; "" if there is none.
func (s *scenario) bundle(ctx context.Context) string {
	shards, _, _ := testkit.Shards(ctx, s.Clients)
	for _, shard := range shards {
		if shard != nil && len(shard.Object.Webhooks) > 0 {
			return string(shard.Object.Webhooks[0].ClientConfig.CABundle)
		}
	}
	return ""
}

// lose deletes the entry objects and applies them again.
func (s *scenario) lose(t *testing.T) {
	t.Helper()
	testkit.Kubectl(t, cluster, "", "delete", "mutatingwebhookconfigurations", "-l", podwebhook.LabelConfiguration)
	s.awaitEvent(t, appsv1beta1.ReasonWebhookConfigurationMissing)
	applyInstallFile(t, "apply", "--server-side", "-f", "install.yaml", "-l", podwebhook.LabelConfiguration)
}

// forget deletes a SidecarSet. The leader looks whether it is gone before it forgets what the SidecarSet needed.
func (s *scenario) forget(t *testing.T) {
	t.Helper()
	testkit.Kubectl(t, cluster, "", "delete", "sidecarset", "canary")
	await.Within(t, rolloutPatience, "a look at the SidecarSet", func(context.Context) error {
		for _, q := range requestsOf(t, s.installation) {
			if q.resource == "sidecarsets" && q.verb == "get" && strings.HasSuffix(q.account, "controller") {
				return nil
			}
		}
		return errors.New("there was none")
	})
}

// scrape tries to read metrics of both roles with an account that has no right to read them.
func (s *scenario) scrape(t *testing.T) {
	t.Helper()
	namespace := testkit.Namespace(t, api, nil)
	token := tokenOf(t, namespace, "nobody")
	// The test asks each replica once, because a replica checks only so many of an unauthenticated client's
	// tokens in a second.
	for _, replica := range []*deploy.Replica{s.webhook, s.controller} {
		if code := scrape(t, s.webhook, replica.Metrics, token); code != http.StatusForbidden {
			t.Errorf("%s answers %d", replica.Name, code)
		}
	}
}

// uninstall deletes the CRD, and with it all objects that the operator keeps for SidecarSets.
func (s *scenario) uninstall(t *testing.T) {
	t.Helper()
	testkit.Kubectl(t, cluster, "", "delete", "crd", deploy.CRD, "--timeout="+await.Patience.String())
	await.Within(t, rolloutPatience, "the end of the Pod webhooks", func(ctx context.Context) error {
		shards, _, err := testkit.Shards(ctx, s.Clients)
		for _, shard := range shards {
			if shard != nil && !shard.IsEmpty() {
				return fmt.Errorf("%s holds webhooks", shard.Object.Name)
			}
		}
		return err
	})
}

// leave stops the process that answers webhooks, as a rollout does.
func (s *scenario) leave(t *testing.T) {
	t.Helper()
	if err := s.webhook.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}
