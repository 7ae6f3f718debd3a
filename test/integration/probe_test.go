package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// If the operator has a Namespace in which it tries Pods, Ready covers the whole way of a Pod
// through the API server.
func TestReadyCoversAPodCreatedInTheProbeNamespace(t *testing.T) {
	operator.NeedReplicas(t)
	i := newInstallation(t, stand.Options{}, deploy.Default)
	for _, command := range []string{
		"create namespace sidecarset-probe",
		"-n sidecarset-probe create role sidecarset-probe --verb=create --resource=pods",
		"-n sidecarset-probe create rolebinding sidecarset-probe --role=sidecarset-probe --serviceaccount=sidecarset-system:sidecarset-operator",
	} {
		if _, err := i.cluster.Kubectl(t.Context(), "", strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	i.start(t, 20, "--probe-namespace=sidecarset-probe")
	testkit.AwaitCalled(t, i.api)
	named := func(name, namespace string) *unstructured.Unstructured {
		set := newSidecarSet(t, namespace, onlyHere(name))
		set.SetGenerateName("")
		set.SetName(name)
		if err := i.api.Create(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		return set
	}
	await := func(name string, status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		await.Eventually(t, "the condition of "+name, func(ctx context.Context) error {
			set := &appsv1beta1.SidecarSet{}
			if err := i.api.Get(ctx, client.ObjectKey{Name: name}, set); err != nil {
				return err
			}
			ready := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
			if ready == nil || ready.Status != status || ready.Reason != reason || !strings.Contains(ready.Message, message) {
				return fmt.Errorf("the condition is %+v", ready)
			}
			return nil
		})
	}
	named("tried", "sidecarset-probe")
	named("elsewhere", "default")
	await("tried", metav1.ConditionTrue, appsv1beta1.ReasonReady, "")
	await("elsewhere", metav1.ConditionTrue, appsv1beta1.ReasonReady, "")

	// Pod Security admission refuses Pods there.
	if _, err := i.cluster.Kubectl(t.Context(), "", "label", "namespace", "sidecarset-probe", "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitPodsForbidden(t, i.api, "sidecarset-probe")
	named("refused", "sidecarset-probe") // its container has no securityContext
	await("refused", metav1.ConditionFalse, appsv1beta1.ReasonProbeFailed, "violates PodSecurity")
}
