package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// awaitEvent waits for an Event about a SidecarSet, as kubectl describe finds it, with this type and reason.
func awaitEvent(t *testing.T, set *unstructured.Unstructured, kind, reason string) (found corev1.Event) {
	t.Helper()
	about := client.MatchingFieldsSelector{Selector: fields.Set{
		"involvedObject.kind": "SidecarSet", "involvedObject.name": set.GetName(), "involvedObject.namespace": "", "involvedObject.uid": string(set.GetUID()),
	}.AsSelector()}
	await.Eventually(t, "an Event "+reason, func(ctx context.Context) error {
		var list corev1.EventList
		if err := api.List(ctx, &list, about); err != nil {
			return err
		}
		i := slices.IndexFunc(list.Items, func(e corev1.Event) bool { return e.Reason == reason })
		if i < 0 {
			return fmt.Errorf("there are %v", list.Items)
		}
		found = list.Items[i]
		return nil
	})
	if found.Type != kind || found.Namespace != "default" || found.InvolvedObject.APIVersion != appsv1beta1.GroupVersion.String() || found.Message == "" {
		t.Errorf("the Event is %+v", found)
	}
	return found
}

const oneSidecar = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
containers: [{name: side, image: "example.com/side:v1"}]
`

func TestKubectlDescribeShowsEvents(t *testing.T) {
	set := createSidecarSet(t, testkit.Namespace(t, api, nil), oneSidecar)
	e := awaitEvent(t, set, corev1.EventTypeNormal, appsv1beta1.ReasonInjecting)
	_, shown, _ := strings.Cut(testkit.Kubectl(t, cluster, "", "describe", "sidecarset", set.GetName()), "\nEvents:")
	if !strings.Contains(shown, appsv1beta1.ReasonInjecting) || !strings.Contains(shown, e.Message) {
		t.Errorf("kubectl describe shows the Events %s", shown)
	}
}
