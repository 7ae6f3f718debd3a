package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// writesOf counts how often the operator has tried to write the Pods of a namespace, other
// than their status. It reads the audit log.
func (r *plane) writesOf(t *testing.T, namespace string) (writes int) {
	t.Helper()
	file, err := os.Open(filepath.Join(r.cluster.Dir, "logs", "kube-apiserver-1.audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), namespace) {
			continue
		}
		var event struct {
			Stage, Verb string
			User        struct{ Username string }
			ObjectRef   struct{ Resource, Namespace, Subresource string }
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil { // the last line may be incomplete
			continue
		}
		if event.Stage == "ResponseComplete" && slices.Contains([]string{"patch", "update"}, event.Verb) && strings.HasPrefix(event.User.Username, "system:serviceaccount:sidecarset-system:") &&
			event.ObjectRef.Resource == "pods" && event.ObjectRef.Namespace == namespace && event.ObjectRef.Subresource == "" {
			writes++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return writes
}

// matchUpdates are the constraints of a policy for updates of the Pods of a namespace.
func matchUpdates(namespace string) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
	}
}

// install creates objects of a policy. They are deleted after the test.
func (r *plane) install(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := r.api.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.api.Delete(context.WithoutCancel(t.Context()), object) })
	}
}

// A policy denies the image of all Pods. Each Pod is tried and rests, and the status says so. When the
// policy is gone, the rollout ends: at once if the author changes the image.
func (r *plane) testRefused(t *testing.T) {
	const pods, mostOfEach = 30, 3
	namespace := r.namespace(t)
	a := r.roll(t, namespace, `maxUnavailable: "50%"`, atOnceProven())
	r.deploy(t, namespace, pods, quickToStop)
	a.awaitComplete(t, rolloutPatience, pods)
	name := "refuse-" + namespace
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: matchUpdates(namespace),
			Validations:      []admissionregistrationv1.Validation{{Expression: `!object.spec.containers.exists(c, c.image == "example.com/side:v2")`, Message: "hands off"}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}},
	}
	r.install(t, policy, binding)
	try := func(ctx context.Context) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.with(t, "example.com/side:v1")[0]}}
		body := `{"spec":{"containers":[{"name":"side","image":"example.com/side:v2"}]}}`
		return r.api.Patch(ctx, p, client.RawPatch(types.StrategicMergePatchType, []byte(body)), client.DryRunAll)
	}
	await.Within(t, rolloutPatience, "a refusal", func(ctx context.Context) error {
		if err := try(ctx); err == nil || !strings.Contains(err.Error(), "hands off") {
			return errors.New("a change of a Pod is answered with " + fmt.Sprint(err))
		}
		return nil
	})
	before := r.writesOf(t, namespace)
	a.setImage(t, "example.com/side:v2")
	began := time.Now()
	a.await(t, "the refused Pods", func(s appsv1beta1.SidecarSetStatus) error {
		for _, group := range s.BlockedPods {
			if group.Reason == "Refused" && strings.Contains(group.Message, "hands off") {
				return nil
			}
		}
		return fmt.Errorf("blocked are %+v", s.BlockedPods)
	})
	<-time.After(time.Until(began.Add(time.Minute)))
	if got := r.writesOf(t, namespace) - before; got < pods || got > pods*mostOfEach {
		t.Errorf("there were %d writes in a minute, want one of each Pod, and %d at most", got, mostOfEach)
	} else {
		t.Logf("%d writes in a minute", got)
	}
	for _, object := range []client.Object{binding, policy} {
		if err := r.api.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	if testkit.Scaled(true, false) { // the operator would try again within five minutes
		a.setImage(t, "example.com/side:v3")
	}
	a.awaitComplete(t, patience, pods)
}

// A policy takes back what the operator writes. The operator tries a few times, and
// says so.
func (r *plane) testUndone(t *testing.T) {
	if r.cluster.Minor() < 36 {
		t.Skip("SKIP: API servers have MutatingAdmissionPolicies since Kubernetes 1.36")
	}
	const pods, most = 3, 12
	namespace := r.namespace(t)
	a := r.roll(t, namespace, `maxUnavailable: "100%"`, atOnceProven())
	r.deploy(t, namespace, pods, quickToStop)
	a.awaitComplete(t, rolloutPatience, pods)
	name := "undo-" + namespace
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints:   matchUpdates(namespace),
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[
					JSONPatch{op: "replace", path: "/spec/containers", value: oldObject.spec.containers},
					JSONPatch{op: "replace", path: "/metadata/annotations", value: oldObject.metadata.annotations}
				]`},
			}},
		},
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	}
	r.install(t, policy, binding)
	await.Within(t, rolloutPatience, "a change that is undone", func(ctx context.Context) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.with(t, "example.com/side:v1")[0]}}
		if err := r.api.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`)), client.DryRunAll); err != nil {
			return err
		}
		if p.Annotations["a"] != "" {
			return errors.New("a change of annotations remains")
		}
		return nil
	})
	before := r.writesOf(t, namespace)
	a.setImage(t, "example.com/side:v2")
	<-time.After(30 * time.Second)
	if got := r.writesOf(t, namespace) - before; got == 0 || got > most {
		t.Errorf("there were %d writes in half a minute, want %d at most", got, most)
	}
	await.Within(t, rolloutPatience, "Pods whose update is undone", func(ctx context.Context) error {
		set, err := testkit.Get(ctx, r.api, a.set.GetName())
		if err != nil {
			return err
		}
		for _, group := range set.Status.BlockedPods {
			if group.Reason == "WriteUndone" && strings.HasPrefix(group.First[0], namespace+"/web-") {
				return nil
			}
		}
		return fmt.Errorf("blocked are %+v", set.Status.BlockedPods)
	})
}
