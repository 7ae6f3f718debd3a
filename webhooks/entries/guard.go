package entries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/entryplan"
)

// guardEvery is the time between two looks at the configurations of the manifests. Each look
// is two requests.
const guardEvery = 5 * time.Second

// guardManifests removes rules for other objects than SidecarSets and new Pods from the
// two configurations of the manifests, until ctx ends. The operator has the right to write
// them, because it writes the CA bundle. So an attacker who takes over one of its processes
// can write them, too.
func (l *leader) guardManifests(ctx context.Context) {
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
		if err := l.repairManifests(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).V(1).Info("Could not keep the webhook configurations of the manifests", "reason", err.Error())
		}
	}, guardEvery)
}

// repairManifests repairs the configurations. It lists them by name: the operator has the
// right to list configurations, but not to get these.
func (l *leader) repairManifests(ctx context.Context) error {
	var mutating admissionregistrationv1.MutatingWebhookConfigurationList
	var validating admissionregistrationv1.ValidatingWebhookConfigurationList
	err := errors.Join(
		l.live.List(ctx, &mutating, client.MatchingFields{"metadata.name": l.webhooks.options.MutatingManifest}),
		l.live.List(ctx, &validating, client.MatchingFields{"metadata.name": l.webhooks.options.ValidatingManifest}),
	)
	for _, c := range mutating.Items {
		err = errors.Join(err, l.repairManifest(ctx, &c, c.Webhooks))
	}
	for _, c := range validating.Items {
		var webhooks []admissionregistrationv1.MutatingWebhook
		for _, w := range c.Webhooks {
			webhooks = append(webhooks, admissionregistrationv1.MutatingWebhook{Name: w.Name, Rules: w.Rules, NamespaceSelector: w.NamespaceSelector})
		}
		err = errors.Join(err, l.repairManifest(ctx, &c, webhooks))
	}
	return err
}

// repairManifest removes the webhooks and rules that are not the operator's. It tests that the object
// has not changed since it was read, because a JSON patch addresses webhooks by position.
func (l *leader) repairManifest(ctx context.Context, object client.Object, webhooks []admissionregistrationv1.MutatingWebhook) error {
	repairs := entryplan.Repairs(webhooks, l.webhooks.options.Settings.Namespace)
	if len(repairs) == 0 {
		return nil
	}
	operations := []jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion", object.GetResourceVersion())}
	var names []string
	for _, r := range repairs {
		names = append(names, webhooks[r.Index].Name)
		path := fmt.Sprintf("/webhooks/%d", r.Index)
		if len(r.Rules) == 0 {
			operations = append(operations, jsonpatch.NewOperation("remove", path, nil))
		} else {
			operations = append(operations, jsonpatch.NewOperation("replace", path+"/rules", r.Rules))
		}
	}
	body, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	if err := l.writer.Patch(ctx, object, client.RawPatch(types.JSONPatchType, body)); err != nil {
		return fmt.Errorf("repairing %s: %w", object.GetName(), err) // the next look tries again
	}
	l.webhooks.m.foreign.Add(float64(len(names)))
	log.FromContext(ctx).Info("Removed or repaired webhook entries that another program had written", "configuration", object.GetName(), "entries", names)
	return nil
}
