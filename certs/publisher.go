package certs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// An object is written once in writeEvery, in case another program keeps reverting the bundle, and up to slower times more seldom
	// while writes fail.
	writeEvery = time.Second
	slower     = 60
	// writtenAnnotation is on a webhook configuration whose bundle was written once more: an API server compiles nothing again for an
	// equal object. Its value is the resourceVersion that the write replaced.
	writtenAnnotation = "sidecarset.io/bundle-written"
)

// Publisher writes the CA bundle into the objects of the manifests, and says what is to be written into the shards. It is a
// manager.Runnable that needs the leader. It restores what another program changes, and changes no field but the bundle, and one
// annotation.
//
// Other programs write the same objects: kubectl apply, Helm and GitOps controllers may reset caBundle. A JSON patch addresses
// webhooks by position, so each patch tests the resourceVersion that it was computed from.
type Publisher struct {
	client     client.Client
	source     *Source
	onlyShards bool // another program writes the objects of the manifests

	mu      sync.Mutex
	removal removal // new with the leader: a process leads once
	bundle  []byte  // nil until the leader knows
	notify  []chan<- struct{}

	attempts map[objectKey]*attempt // of Start only
	pauses   workqueue.TypedRateLimiter[objectKey]
}

// attempt is what is known of the writes of one object.
type attempt struct {
	next  time.Time // when it may be written
	again time.Time // when it is written once more; zero if it was
}

// NeedLeaderElection has a manager start it on the leader only.
func (p *Publisher) NeedLeaderElection() bool { return true }

// Bundle is what every object has to hold; nil on a process that does not lead.
func (p *Publisher) Bundle() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bundle
}

// Fresh is Bundle after the material has been read again. A leader that was suspended must not write what it remembers.
func (p *Publisher) Fresh(ctx context.Context) ([]byte, error) {
	if err := p.source.Refresh(ctx); err != nil {
		return nil, err
	}
	p.decide(p.source.published.view())
	return p.Bundle(), nil
}

// Notify makes every later change of Bundle send on the channel, without waiting for a receiver.
func (p *Publisher) Notify(changed chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = append(p.notify, changed)
}

// decide finds out what every object has to hold.
func (p *Publisher) decide(v view) {
	named := p.source.CAs()
	if !v.observed || len(named) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	bundle := p.removal.want(named, v.bundles(), time.Now())
	if string(bundle) == string(p.bundle) {
		return
	}
	p.bundle = bundle
	for _, changed := range p.notify {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// Start publishes until ctx ends. A failure is logged and tried again.
func (p *Publisher) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("ca-bundle"))
	begun, reported := time.Now(), ""
	for {
		changed := p.source.published.Changed()
		v := p.source.published.view()
		p.decide(v)
		p.publish(ctx, v, begun)
		missing := v.missing()
		targetsMissing.Set(float64(len(missing)))
		if reason := errors.Join(missing...); reason != nil && v.observed && reason.Error() != reported {
			reported = reason.Error()
			log.FromContext(ctx).Info("Waiting for objects to publish the CA bundle in", "reason", strings.ReplaceAll(reported, "\n", "; "))
		}
		select {
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			p.bundle = nil
			return nil
		case <-changed:
		case <-time.After(min(p.source.opts.Times.PollClock, p.source.opts.Times.WriteAgain)):
		}
	}
}

// publish writes every object that lacks the bundle, or that is to be written once more, and that may be written now.
func (p *Publisher) publish(ctx context.Context, v view, begun time.Time) {
	if p.Bundle() == nil || p.onlyShards {
		return
	}
	for _, o := range v.objects {
		if o.shard || len(o.clients) == 0 {
			continue
		}
		a := p.attempts[o.objectKey]
		if a == nil {
			a = &attempt{again: begun.Add(p.source.opts.Times.WriteAgain)}
			p.attempts[o.objectKey] = a
		}
		now := time.Now()
		lacks := o.lacks(p.Bundle())
		once := o.gvk != definitionKind && !a.again.IsZero() && now.After(a.again)
		if !lacks {
			p.pauses.Forget(o.objectKey)
		}
		if now.Before(a.next) || !lacks && !once {
			continue
		}
		pause := p.pauses.When(o.objectKey)
		a.next = now.Add(pause)
		switch published, err := p.write(ctx, o); {
		case err == nil && published:
			a.again = now.Add(p.source.opts.Times.WriteAgain)
		case err == nil:
			a.again = time.Time{}
		case p.pauses.NumRequeues(o.objectKey) > 2:
			log.FromContext(ctx).Error(err, "Failed to publish the CA bundle", o.gvk.Kind, o.name, "retryAfter", pause)
		default:
			log.FromContext(ctx).V(1).Info("Waiting to observe what another program has written", "reason", err.Error())
		}
	}
}

// write writes the bundle into one object, or the annotation of a second write if the object has the bundle. It reports whether it
// was the bundle: that may have changed since the caller looked.
func (p *Publisher) write(ctx context.Context, o *object) (lacks bool, err error) {
	bundle, err := p.Fresh(ctx)
	if err != nil {
		return false, err
	}
	if lacks = o.lacks(bundle); !lacks && o.gvk == definitionKind {
		return false, nil // API servers convert by one copy, so no second write is needed
	}
	operations := []jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion", o.resourceVersion)}
	for _, c := range o.clients {
		if c.bundle != string(bundle) {
			operations = append(operations, jsonpatch.NewOperation("add", c.path+"/caBundle", bundle)) // []byte is rendered in base64
		}
	}
	if !lacks {
		if !o.annotated {
			operations = append(operations, jsonpatch.NewOperation("add", "/metadata/annotations", map[string]string{}))
		}
		operations = append(operations, jsonpatch.NewOperation("add", "/metadata/annotations/"+strings.ReplaceAll(writtenAnnotation, "/", "~1"), o.resourceVersion))
	}
	body, err := json.Marshal(operations)
	if err != nil {
		return false, fmt.Errorf("encoding patch of %s: %w", o, err)
	}
	target := &metav1.PartialObjectMetadata{} // the answer needs no more than the metadata
	target.SetGroupVersionKind(o.gvk)
	target.SetName(o.name)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := p.client.Patch(ctx, target, client.RawPatch(types.JSONPatchType, body), client.FieldOwner(FieldOwner)); err != nil {
		return false, fmt.Errorf("writing caBundle of %s: %w", o, err)
	}
	if lacks {
		bundleWrites.WithLabelValues(o.gvk.Kind).Inc()
		log.FromContext(ctx).Info("Published the CA bundle", o.gvk.Kind, o.name)
	}
	return lacks, nil
}
