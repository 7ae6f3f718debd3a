package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// onlyHere is a spec that selects app=<app> in the test's namespace.
func onlyHere(app string) string {
	return fmt.Sprintf("selector: {matchLabels: {app: %s}}\n%scontainers: [{name: side-%s, image: \"example.com/side:v1\"}]\n", app, inNamespace, app)
}

// podWebhooks returns the stored entries for Pods of a namespace, by the app label that they
// select.
func podWebhooks(ctx context.Context, c client.Client, namespace string) (map[string]admissionregistrationv1.MutatingWebhook, error) {
	var list admissionregistrationv1.MutatingWebhookConfigurationList
	if err := c.List(ctx, &list, client.MatchingLabelsSelector{Selector: podwebhook.Labelled()}); err != nil {
		return nil, err
	}
	found := map[string]admissionregistrationv1.MutatingWebhook{}
	for i := range list.Items {
		for _, w := range list.Items[i].Webhooks {
			if w.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] != namespace || w.Rules[0].Resources[0] != "pods" {
				continue
			}
			app := w.ObjectSelector.MatchLabels["app"]
			if _, twice := found[app]; twice {
				return nil, fmt.Errorf("there are two entries for app=%s", app)
			}
			found[app] = w
		}
	}
	return found, nil
}

// A SidecarSet is admitted only when every API server calls the operator for the Pods that it
// selects. So a user need not wait before creating a Pod.
func TestAPodDirectlyBehindItsSidecarSetIsInjected(t *testing.T) {
	namespace, pods := testkit.Namespace(t, api, nil), newBehind(t)
	for i := range 10 {
		app := fmt.Sprintf("behind-%d", i)
		pods.create(t, newSidecarSet(t, namespace, onlyHere(app)), pod(namespace, app, "app="+app), "side-"+app, "app")
	}
	pods.check(t)
}

// If an administrator keeps one entry for all Pods, the operator writes no entry, and
// SidecarSets become Ready all the same.
func TestStaticModeWritesNoWebhooks(t *testing.T) {
	i := installApart(t, deploy.Static)
	i.start(t, 20)
	defer expectNoRefusal(t, i) // the layout takes rights away
	testkit.AwaitCalled(t, i.api)
	set := newSidecarSet(t, "default", onlyHere("web"))
	set.SetGenerateName("")
	set.SetName("web")
	if err := i.api.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if _, err := i.cluster.Kubectl(t.Context(), "", "wait", "--for=condition=Ready", "sidecarset/web", "--timeout="+await.Patience.String()); err != nil {
		t.Fatal(err)
	}
	p := pod("default", "p", "app=web")
	if err := i.api.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"side-web", "app"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	found, err := podWebhooks(t.Context(), i.api, "default")
	if err != nil || len(found) != 0 {
		t.Errorf("entries are %v, %v", found, err)
	}
}
