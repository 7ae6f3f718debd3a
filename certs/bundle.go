package certs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// compareEvery is how often the leader compares the bundle with what is published if no object changes. That takes no request.
	compareEvery = 500 * time.Millisecond
	// writeEvery is the shortest time between two writes of one object. It slows the writes if another program keeps reverting the
	// bundle.
	writeEvery = time.Second
	// maxBackoff is the longest time between two attempts to write an object.
	maxBackoff = time.Minute
)

// BundlePublisher writes a Source's bundle as caBundle into every clientConfig that a Published follows, and restores it if another
// program changes it. It is a manager.Runnable that needs the leader. It changes no other field.
//
// Other programs write the same objects: kubectl apply, Helm and GitOps controllers, which may reset caBundle to the value in their
// manifests; the leader's own controller of webhook entries; cert-manager's cainjector, if the objects are annotated for it. A JSON
// patch addresses entries by position, so each patch tests the resourceVersion that it was computed from. If the test fails, the
// API server answers 422 (Invalid).
type BundlePublisher struct {
	client    client.Client
	source    Source
	published *Published
	attempts  map[string]attempt // by object

	onlyOptional bool // another program writes the objects of the manifests
}

// attempt is the last attempt to write an object.
type attempt struct {
	resourceVersion string        // the version that the patch was computed from
	at              time.Time     // when it began, by the monotonic clock
	pause           time.Duration // before the same version is tried again
}

// due reports whether an object may be written now. A newer version than the one of the last attempt may be written sooner.
func (a attempt) due(o *object) bool {
	pause := writeEvery
	if a.resourceVersion == o.resourceVersion {
		pause = a.pause
	}
	return a.at.IsZero() || time.Since(a.at) >= pause
}

// NeedLeaderElection has a manager start it on the leader only.
func (b *BundlePublisher) NeedLeaderElection() bool { return true }

// Start publishes until ctx ends. A failure is logged and tried again.
func (b *BundlePublisher) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("ca-bundle"))
	if !b.refreshSource(ctx) {
		return nil
	}
	var missing lastReason
	for {
		changed := b.published.Changed()
		b.publish(ctx)
		b.reportMissing(ctx, &missing)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(compareEvery):
		}
	}
}

// refreshSource makes the source read its material again before the leader publishes anything, so that a new leader does not revert
// what the last one wrote. It returns false if ctx ended meanwhile.
func (b *BundlePublisher) refreshSource(ctx context.Context) bool {
	for ctx.Err() == nil {
		err := b.source.Refresh(ctx)
		if err == nil {
			return true
		}
		log.FromContext(ctx).V(1).Info("Waiting for a CA bundle to publish", "reason", err.Error()) // the source reports it
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
	return false
}

// publish writes every object that lacks the bundle and may be written now.
func (b *BundlePublisher) publish(ctx context.Context) {
	bundle := b.source.Bundle()
	if len(bundle) == 0 {
		return
	}
	for _, o := range b.published.snapshot().objects {
		if b.onlyOptional && !o.optional {
			continue
		}
		stale := slices.DeleteFunc(slices.Clone(o.clients), func(c clientConfig) bool { return c.bundle == string(bundle) })
		last := b.attempts[o.String()]
		if len(stale) > 0 && last.due(o) {
			b.attempts[o.String()] = attempt{o.resourceVersion, time.Now(), b.write(ctx, o, stale, bundle, last)}
		}
	}
}

// write patches one object and returns how long to wait before the same version of it is tried again.
func (b *BundlePublisher) write(ctx context.Context, o *object, stale []clientConfig, bundle []byte, last attempt) time.Duration {
	logger := log.FromContext(ctx).WithValues(o.gvk.Kind, o.name)
	again := last.resourceVersion == o.resourceVersion
	err := b.patch(ctx, o, stale, bundle)
	switch {
	case err == nil:
		bundleWrites.WithLabelValues(o.gvk.Kind).Inc()
		logger.Info("Published the CA bundle", "entries", len(stale))
		return 5 * writeEvery // the newer version is observed long before that
	case !again && (apierrors.IsInvalid(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err)):
		logger.V(1).Info("Waiting to observe the version that another program has written", "reason", err.Error())
		return writeEvery
	}
	pause := writeEvery
	if again {
		pause = min(2*last.pause, maxBackoff)
	}
	logger.Error(err, "Could not publish the CA bundle", "retryAfter", pause)
	return pause
}

// reportMissing logs which targets cannot be written because they do not exist, once for each change of that list.
func (b *BundlePublisher) reportMissing(ctx context.Context, reported *lastReason) {
	s := b.published.snapshot()
	foreignEntries.Set(float64(s.foreign))
	targetsMissing.Set(float64(len(s.missing)))
	if missing := errors.Join(s.missing...); reported.news(missing) {
		log.FromContext(ctx).Info("Waiting for objects to publish the CA bundle in", "reason", strings.ReplaceAll(missing.Error(), "\n", "; "))
	}
}

// patch writes the bundle into some of an object's clientConfigs, into all of them or none. The JSON patch operation "add" replaces
// an existing member.
func (b *BundlePublisher) patch(ctx context.Context, o *object, stale []clientConfig, bundle []byte) error {
	operations := []jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion", o.resourceVersion)}
	for _, c := range stale {
		operations = append(operations, jsonpatch.NewOperation("add", c.path+"/caBundle", bundle)) // []byte is rendered in base64
	}
	body, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encoding patch of %s: %w", o, err)
	}
	target := &metav1.PartialObjectMetadata{} // the answer needs no more than the metadata
	target.SetGroupVersionKind(o.gvk)
	target.SetName(o.name)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := b.client.Patch(ctx, target, client.RawPatch(types.JSONPatchType, body), client.FieldOwner(FieldOwner)); err != nil {
		return fmt.Errorf("writing caBundle of %s: %w", o, err)
	}
	return nil
}
