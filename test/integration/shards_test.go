package integration

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/manifests"
	"github.com/sidecarset/operator/test/testkit"
)

// applyInstallFile runs kubectl with the manifests of a release, where args name install.yaml.
func applyInstallFile(t *testing.T, args ...string) {
	t.Helper()
	text, err := manifests.Build(filepath.Join(deploy.Root(), "config/default"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range args {
		if args[i] == "install.yaml" {
			args[i] = "-"
		}
	}
	testkit.Kubectl(t, cluster, text, args...)
}

// The operator has no right to create shards. If a user deletes them, no SidecarSet is Ready. The
// condition Ready and an Event name the command that restores them.
func TestDeletedShardsAreRestoredByTheCommandThatReadyNames(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, oneSidecar)
	testkit.Kubectl(t, cluster, "", "delete", "mutatingwebhookconfigurations", "-l", podwebhook.LabelConfiguration)
	var command string
	testkit.Await(t, api, set.GetName(), "a condition that says what to do", func(set *appsv1beta1.SidecarSet) error {
		c := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
		if command = regexp.MustCompile(`kubectl apply .*`).FindString(c.Message); c.Status != metav1.ConditionFalse || c.Reason != appsv1beta1.ReasonWebhookConfigurationMissing || command == "" {
			return fmt.Errorf("the condition is %v", c)
		}
		return nil
	})
	if e := awaitEvent(t, set, "Warning", appsv1beta1.ReasonWebhookConfigurationMissing); !strings.Contains(e.Message, command) {
		t.Errorf("the Event says %q, want %q", e.Message, command)
	}
	applyInstallFile(t, strings.Fields(strings.TrimPrefix(command, "kubectl "))...)
	testkit.AwaitReady(t, api, set.GetName())
	p := pod(namespace, "web", "app=web")
	if create(t, p); len(p.Spec.Containers) != 2 {
		t.Errorf("a Pod has the containers %q", testkit.ContainerNames(p.Spec.Containers))
	}
}

// An attacker who controls a process of the operator has the operator's rights.
func TestTheOperatorCanMakeNoWebhookOfItsOwn(t *testing.T) {
	config := rest.CopyConfig(cluster.Config())
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + deploy.Namespace + ":" + deploy.ServiceAccount,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + deploy.Namespace, "system:authenticated"},
	}
	taken, err := client.New(config, client.Options{Scheme: api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"aaa-evil", "sidecarset-pods-16"} {
		for _, object := range []client.Object{
			&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}},
		} {
			if err := taken.Create(t.Context(), object); !apierrors.IsForbidden(err) {
				t.Errorf("making %T %s: %v, want a refusal", object, name, err)
			}
		}
	}
}
