package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/test/testkit"
)

// One process answers webhooks, and another leads. Together they do the same as one process
// with both roles.
func TestRolesCanBeSplit(t *testing.T) {
	operator.NeedReplicas(t)
	for _, replica := range replicas {
		if err := replica.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	controller, err := operator.StartReplicaUnready(t.Context(), 5, "--role=controller")
	if err != nil {
		t.Fatal(err)
	}
	webhook, err := operator.StartReplica(t.Context(), 6, "--role=webhook")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // not with t.Context, which has ended by then
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(webhook.Stop(ctx), controller.Stop(ctx)); err != nil {
			t.Error(err)
		}
		for i, replica := range replicas {
			var err error
			if replicas[i], err = operator.StartReplica(ctx, replica.Number); err != nil {
				t.Fatal(err)
			}
		}
		if err := testkit.UntilCalled(ctx, api); err != nil {
			t.Error(err)
		}
	})
	testkit.AwaitCalled(t, api) // the API server follows endpoints with a delay

	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
containers: [{name: side, image: "example.com/side:v1"}]
`)
	p := pod(namespace, "p", "app=web")
	create(t, p)
	if diff := cmp.Diff([]string{"side", "app"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 1, Updated: 1})
	if strings.Contains(webhook.Log(), "Successfully acquired lease") {
		t.Error("the webhook role leads")
	}
	if strings.Contains(controller.Log(), "Serving webhooks") {
		t.Error("the controller role serves webhooks")
	}
}
