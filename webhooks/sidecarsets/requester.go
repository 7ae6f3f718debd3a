package sidecarsets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/requester"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// RequesterMode says what happens to a SidecarSet whose requester has no right to create Pods
// with its containers.
type RequesterMode string

// The values of RequesterMode.
const (
	RequesterOff     RequesterMode = "off"     // the operator does not look at rights
	RequesterWarn    RequesterMode = "warn"    // the requester gets a warning
	RequesterEnforce RequesterMode = "enforce" // the SidecarSet is refused
)

// RequesterModes are all values.
var RequesterModes = []RequesterMode{RequesterOff, RequesterWarn, RequesterEnforce}

// maxReviews bounds how many questions of one request are under way.
const maxReviews = 8

// RequesterCheckOptions is what a RequesterCheck needs.
type RequesterCheckOptions struct {
	Mode RequesterMode
	// Store returns the snapshot that knows the Namespaces; nil until there is one.
	Store func() *match.Snapshot
	// Access answers questions about what users may do.
	Access AccessReviewer
	// Revisions finds the recorded revision that a SidecarSet injects.
	Revisions snapshot.RecordedRevisions
	// ExcludedNamespaces are never injected.
	ExcludedNamespaces []string
	// Registry takes the metrics; they are not exposed if nil.
	Registry prometheus.Registerer
}

// AccessReviewer answers whether a user has a right. An error means that this is not known.
type AccessReviewer interface {
	Allowed(ctx context.Context, user authenticationv1.UserInfo, question requester.Question) (bool, error)
}

// RequesterCheck asks whether the requester of a SidecarSet has the rights that its
// containers take, because they run in the Pods of other users. A nil RequesterCheck
// checks nothing. It is safe for concurrent use.
type RequesterCheck struct {
	RequesterCheckOptions
	total *prometheus.CounterVec
}

// NewRequesterCheck returns a RequesterCheck; nil if it is switched off.
func NewRequesterCheck(options RequesterCheckOptions) *RequesterCheck {
	if options.Mode == RequesterOff || options.Mode == "" {
		return nil
	}
	total := promauto.With(options.Registry).NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_requester_checks_total",
		Help: "SidecarSets whose requester's rights were checked, by result: allowed, warned, denied, error.",
	}, []string{"result"})
	for _, result := range []string{"allowed", "warned", "denied", "error"} {
		total.WithLabelValues(result)
	}
	return &RequesterCheck{options, total}
}

// Check looks for rights that the requester of a SidecarSet lacks. It returns them as
// warnings or, if rights are enforced, as an error of status 403. An update needs no
// rights if it changes neither what is injected nor the Pods that get it.
func (c *RequesterCheck) Check(ctx context.Context, user authenticationv1.UserInfo, set, old *hub.SidecarSet) ([]string, error) {
	if c == nil || old != nil && !requester.Changed(set.Object, old.Object) {
		return nil, nil
	}
	missing, err := c.missing(ctx, user, set)
	name := fmt.Sprintf("user %q", user.Username)
	switch enforced := c.Mode == RequesterEnforce; {
	case errors.Is(err, errNoTurn):
		c.total.WithLabelValues("error").Inc()
		return nil, errNoTurn
	case err != nil && enforced:
		c.total.WithLabelValues("error").Inc()
		return nil, lookUpError("whether "+name+" may inject these sidecars", err)
	case err != nil:
		c.total.WithLabelValues("error").Inc()
		logf.FromContext(ctx).Error(err, "Failed to look up the rights of a SidecarSet's requester", "SidecarSet", set.Set.Name)
		return []string{fmt.Sprintf("could not look up whether %s may inject these sidecars: %v", name, err)}, nil
	case len(missing) == 0:
		c.total.WithLabelValues("allowed").Inc()
		return nil, nil
	case enforced:
		c.total.WithLabelValues("denied").Inc()
		return nil, apierrors.NewForbidden(appsv1beta1.Resource.GroupResource(), set.Set.Name, errors.New(name+" "+strings.Join(missing, "; and ")))
	}
	c.total.WithLabelValues("warned").Inc()
	warnings := make([]string, len(missing))
	for i, m := range missing {
		warnings[i] = name + " " + m
	}
	return warnings, nil
}

// missing returns the rights that the requester lacks. It asks until all are known.
func (c *RequesterCheck) missing(ctx context.Context, user authenticationv1.UserInfo, set *hub.SidecarSet) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	store := c.Store()
	if store == nil {
		return nil, errors.New("this replica of the operator has not read all Namespaces yet")
	}
	demand, err := c.demand(ctx, store, set)
	if err != nil {
		return nil, err
	}
	answers := map[requester.Question]bool{}
	for {
		next := demand.Next(answers)
		if len(next) == 0 {
			return demand.Missing(answers), nil
		}
		if err := c.ask(ctx, user, next, answers); err != nil {
			return nil, err
		}
	}
}

// demand returns the rights that the SidecarSet takes. If it injects a recorded revision,
// they include those that the revision takes.
func (c *RequesterCheck) demand(ctx context.Context, store *match.Snapshot, set *hub.SidecarSet) (requester.Demand, error) {
	demand := requester.NewDemand(set.Object, set.Set, requester.Cluster{
		Select:   func(selector labels.Selector) []string { return slices.Collect(store.NamespacesWith(selector)) },
		Excluded: c.ExcludedNamespaces,
	})
	recorded, err := c.Revisions.Named(ctx, set.Set)
	switch {
	case err != nil:
		return demand, lookUpError(revisionsOf(set.Set.Name), err)
	case recorded == nil:
		return demand, nil
	}
	restored, err := revision.Restore(set.Object, recorded)
	if err != nil {
		return demand, err
	}
	return demand.WithRevision(recorded.Name, restored), nil
}

// ask adds the answers to several questions.
func (c *RequesterCheck) ask(ctx context.Context, user authenticationv1.UserInfo, questions []requester.Question, answers map[requester.Question]bool) error {
	var group errgroup.Group // it returns the first error; the others have the same reason
	var mu sync.Mutex
	group.SetLimit(maxReviews)
	for _, question := range questions {
		group.Go(func() error {
			allowed, err := c.Access.Allowed(ctx, user, question)
			mu.Lock()
			defer mu.Unlock()
			answers[question] = allowed
			return err
		})
	}
	return group.Wait()
}
