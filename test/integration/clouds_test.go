package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/testkit"
)

type mutatingConfiguration = admissionregistrationv1.MutatingWebhookConfiguration

// cloud plays the program of a cloud that leaves out namespaces of its own.
type cloud struct {
	labels map[string]string // of a namespace that it leaves out
	told   string            // what Ready tells of it; LEFT is the name of that namespace
	// edit writes a configuration if it is not yet as the cloud wants it.
	edit func(ctx context.Context, c *mutatingConfiguration, leftOut string) (wrote bool, err error)
}

func notIn(key string, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values}
}

// likeAKS adds two requirements to every namespaceSelector by server-side apply, although the
// object has the label and the annotation by which AKS leaves it alone.
func likeAKS(ctx context.Context, c *mutatingConfiguration, _ string) (bool, error) {
	ours := []metav1.LabelSelectorRequirement{notIn("control-plane", "true"), notIn("kubernetes.azure.com/managedby", "aks")}
	var webhooks []map[string]any
	uninjected := false
	for _, w := range c.Webhooks {
		kept := slices.DeleteFunc(slices.Clone(w.NamespaceSelector.MatchExpressions), func(r metav1.LabelSelectorRequirement) bool {
			return r.Key == ours[0].Key || r.Key == ours[1].Key
		})
		uninjected = uninjected || len(kept)+len(ours) != len(w.NamespaceSelector.MatchExpressions)
		webhooks = append(webhooks, map[string]any{"name": w.Name, "namespaceSelector": metav1.LabelSelector{
			MatchLabels: w.NamespaceSelector.MatchLabels, MatchExpressions: append(kept, ours...),
		}})
	}
	if !uninjected {
		return false, nil
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": c.Name}, "webhooks": webhooks,
	})
	if err != nil {
		return false, err
	}
	return true, api.Patch(ctx, c, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner("admissionsenforcer"), client.ForceOwnership)
}

// likeAutopilot adds a namespace to every list of excluded names, by update.
func likeAutopilot(ctx context.Context, c *mutatingConfiguration, leftOut string) (wrote bool, err error) {
	for i := range c.Webhooks {
		for k, r := range c.Webhooks[i].NamespaceSelector.MatchExpressions {
			if r.Key == corev1.LabelMetadataName && r.Operator == metav1.LabelSelectorOpNotIn && !slices.Contains(r.Values, leftOut) {
				c.Webhooks[i].NamespaceSelector.MatchExpressions[k].Values = append(r.Values, leftOut)
				wrote = true
			}
		}
	}
	if wrote {
		err = api.Update(ctx, c, client.FieldOwner("gke-webhooks"))
	}
	return wrote, err
}

// purpose is the label by which Gardener knows kube-system.
const purpose = "gardener.cloud/purpose"

// likeGardener narrows webhooks for Pods that reach kube-system and refuse them, by a patch. It
// knows kube-system by its label alone: with the name, it would leave our entries as they are.
func likeGardener(ctx context.Context, c *mutatingConfiguration, _ string) (wrote bool, err error) {
	before := c.DeepCopy()
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		selector, err := metav1.LabelSelectorAsSelector(w.NamespaceSelector)
		if err != nil {
			return false, err
		}
		if *w.FailurePolicy == admissionregistrationv1.Fail && w.Rules[0].Resources[0] == "pods" && selector.Matches(labels.Set{purpose: "kube-system"}) {
			w.NamespaceSelector.MatchExpressions = append(w.NamespaceSelector.MatchExpressions, notIn(purpose, "kube-system"))
			w.ObjectSelector.MatchExpressions = append(w.ObjectSelector.MatchExpressions, notIn("resources.gardener.cloud/managed-by", "gardener"))
			wrote = true
		}
	}
	if wrote {
		err = api.Patch(ctx, c, client.StrategicMergeFrom(before), client.FieldOwner("gardenlet"))
	}
	return wrote, err
}

// editing has another program edit all objects with entries every 200 ms until stop is called.
// It counts the writes of that program, and all writes.
type editing struct {
	its, all atomic.Int32
	stop     func()
}

func (e *editing) operators() int32 { return e.all.Load() - e.its.Load() }

func startEditing(t *testing.T, edit func(ctx context.Context, c *mutatingConfiguration) (wrote bool, err error)) *editing {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w, err := api.Watch(ctx, &admissionregistrationv1.MutatingWebhookConfigurationList{}, client.MatchingLabelsSelector{Selector: podwebhook.Labelled()})
	if err != nil {
		t.Fatal(err)
	}
	e := &editing{}
	var all sync.WaitGroup
	all.Go(func() {
		for event := range w.ResultChan() {
			if event.Type == watch.Modified {
				e.all.Add(1)
			}
		}
	})
	all.Go(func() {
		for ctx.Err() == nil {
			var list admissionregistrationv1.MutatingWebhookConfigurationList
			if err := api.List(ctx, &list, client.MatchingLabelsSelector{Selector: podwebhook.Labelled()}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			for i := range list.Items {
				switch wrote, err := edit(ctx, &list.Items[i]); {
				case err == nil && wrote:
					e.its.Add(1)
				case err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err): // an entry has changed, or is gone
					t.Error(err)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	e.stop = func() {
		cancel()
		w.Stop()
		all.Wait()
	}
	t.Cleanup(e.stop)
	return e
}

// Each cloud edits the webhooks of SidecarSets. Selected Pods outside the namespaces that it leaves
// out are injected, Ready is True and says what the cloud does, and neither side continues writing.
func TestCloudsThatLeaveOutNamespaces(t *testing.T) {
	clouds := map[string]cloud{
		"AKS":       {map[string]string{"control-plane": "true"}, "namespaces by control-plane notin (true),kubernetes.azure.com/managedby notin (aks)", likeAKS},
		"Autopilot": {nil, "namespaces by kubernetes.io/metadata.name notin (LEFT)", likeAutopilot},
		"Gardener":  {map[string]string{purpose: "kube-system"}, "namespaces by gardener.cloud/purpose notin (kube-system), Pods by resources.gardener.cloud/managed-by notin (gardener)", likeGardener},
	}
	for name, c := range clouds {
		t.Run(name, func(t *testing.T) {
			namespace, leftOut := testkit.Namespace(t, api, nil), testkit.Namespace(t, api, c.labels)
			told := "Another program leaves out " + strings.ReplaceAll(c.told, "LEFT", leftOut) + "."
			e := startEditing(t, func(ctx context.Context, object *mutatingConfiguration) (bool, error) {
				return c.edit(ctx, object, leftOut)
			})
			app := "app=" + namespace
			spec := "selector: {matchLabels: {app: NS}}\ncontainers: [{name: side, image: \"example.com/side:v1\"}]\n"
			listed := spec + "namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [nowhere]}]}\n"
			for _, spec := range []string{spec, strings.NewReplacer("app: NS", "app: NS-listed").Replace(listed)} {
				set := createSidecarSet(t, namespace, spec)
				testkit.Await(t, api, set.GetName(), "what the cloud does", func(set *appsv1beta1.SidecarSet) error {
					if message := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady).Message; !strings.Contains(message, told) {
						return fmt.Errorf("it says %q, want %q", message, told)
					}
					return testkit.Ready(set)
				})
			}
			its, operators := e.its.Load(), e.operators()
			for i := range 20 {
				for where, want := range map[string]int{namespace: 2, leftOut: 1} {
					p := pod(where, fmt.Sprint("p-", i), app)
					if err := api.Create(t.Context(), p, client.DryRunAll); err != nil || len(p.Spec.Containers) != want {
						t.Errorf("in %s, a Pod has %v: %v", where, testkit.ContainerNames(p.Spec.Containers), err)
					}
				}
				<-time.After(100 * time.Millisecond)
			}
			const again = podwebhook.Shards // the leader writes each shard once more, half a minute after it began
			if its, operators = e.its.Load()-its, e.operators()-operators; its > 2 || operators > again+1 {
				t.Errorf("then the cloud has written %d times, and the operator %d times", its, operators)
			}
			e.stop()
		})
	}
}
