package sidecarsets

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/time/rate"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/podtemplate"
	"github.com/sidecarset/operator/internal/text"
)

// The bounds of the questions of one process, because any Pod can send reviews of made-up
// SidecarSets. A question costs the API server about 4 ms. The burst is enough for a tool that
// applies all SidecarSets of a cluster together.
const (
	templateSeats = 4
	templateRate  = 20 // in a second
	templateBurst = 500
)

// TemplateCheck asks the API server whether Pods may have the containers and volumes of a
// SidecarSet, and whether it keeps what they have. It is safe for concurrent use. A nil TemplateCheck asks nothing.
type TemplateCheck struct {
	client    rest.Interface
	namespace string
	seats     chan struct{}
	rate      *rate.Limiter
	total     *prometheus.CounterVec

	mu                sync.Mutex
	resourcesAskedAt  time.Time
	keepsPodResources bool
}

// NewTemplateCheck returns a TemplateCheck that asks in a namespace. registry takes the metrics;
// they are not exposed if it is nil.
func NewTemplateCheck(config *rest.Config, client *http.Client, namespace string, registry prometheus.Registerer) (*TemplateCheck, error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // they are read from the answer
	server, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("making a client for questions about containers: %w", err)
	}
	total := promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_template_checks_total",
		Help: "SidecarSets whose containers and volumes the API server was to check, by result: accepted, rejected, unchecked.",
	}, []string{"result"})
	for _, result := range []string{"accepted", "rejected", "unchecked"} {
		total.WithLabelValues(result)
	}
	return &TemplateCheck{
		client: server.RESTClient(), namespace: namespace, total: total,
		seats: make(chan struct{}, templateSeats), rate: rate.NewLimiter(templateRate, templateBurst),
	}, nil
}

// templateAnswer is what the API server says about a SidecarSet, and about the one that it
// replaces, if an update may keep what is wrong with that one.
type templateAnswer struct{ now, before podtemplate.Verdict }

// check asks about a SidecarSet that is about to be created or to replace old. It asks nothing
// if old has the same containers and volumes. isRefused says that another rule refuses the
// SidecarSet: such questions are the first to be left out. If there is no verdict, the answer
// has a warning only, because the reason is not the requester's.
func (c *TemplateCheck) check(ctx context.Context, set, old *hub.SidecarSet, isRefused, mayKeep bool) templateAnswer {
	var answer templateAnswer
	if c == nil {
		return answer
	}
	question := podtemplate.New(set)
	var before podtemplate.Question
	if old != nil {
		if before = podtemplate.New(old); question.Equal(before) {
			return answer
		}
	}
	if isRefused && c.rate.Tokens() < templateBurst/2 {
		return answer
	}
	err := c.askBoth(ctx, question, before, old != nil && mayKeep, &answer)
	switch {
	case err != nil:
		c.total.WithLabelValues("unchecked").Inc()
		logf.FromContext(ctx).Info("Failed to ask the API server about containers", "SidecarSet", set.Set.Name, "reason", err.Error())
		const longest = 500
		answer = templateAnswer{now: podtemplate.Verdict{Warnings: []string{fmt.Sprintf(
			"spec: the API server could not check the containers and volumes, so that it may refuse Pods with them: %s", text.Cut(err.Error(), longest))}}}
	case len(answer.now.Refused) > 0:
		c.total.WithLabelValues("rejected").Inc()
	default:
		c.total.WithLabelValues("accepted").Inc()
	}
	return answer
}

var errTooMany = errors.New("this replica of the operator is asked about too many SidecarSets at once; apply it again later")

// askBoth asks one question and, if the API server refuses it and an update may keep problems,
// the question about the stored SidecarSet.
func (c *TemplateCheck) askBoth(ctx context.Context, now, before podtemplate.Question, mayKeep bool, answer *templateAnswer) (err error) {
	if !c.rate.Allow() {
		return errTooMany
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lookUpTimeout, fmt.Errorf("it has not answered within %s", lookUpTimeout))
	defer cancel()
	select {
	case c.seats <- struct{}{}:
		defer func() { <-c.seats }()
	case <-ctx.Done():
		return errTooMany
	}
	if answer.now, err = c.ask(ctx, now); err != nil || len(answer.now.Refused) == 0 || !mayKeep {
		return err
	}
	answer.before, err = c.ask(ctx, before)
	return err
}

func (c *TemplateCheck) ask(ctx context.Context, q podtemplate.Question) (podtemplate.Verdict, error) {
	result := c.post(ctx, q.Body())
	var warnings []string
	for _, warning := range result.Warnings() {
		warnings = append(warnings, warning.Text)
	}
	answer, _ := result.Raw()
	err := result.Error()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return q.Read(answer, warnings, err)
}

func (c *TemplateCheck) post(ctx context.Context, body []byte) rest.Result {
	return c.client.Post().AbsPath("/api/v1/namespaces", c.namespace, "podtemplates").
		Param("dryRun", podtemplate.DryRun).Param("fieldValidation", podtemplate.FieldValidation).
		SetHeader("Content-Type", "application/json").Body(body).MaxRetries(0).Do(ctx)
}

// resourcesKnownFor is how long the answer about spec.resources of Pods is used. It changes only
// if API servers are restarted.
const resourcesKnownFor = time.Minute

// KeepsPodResources reports whether API servers keep spec.resources of Pods. It reports true if
// they do not answer.
func (c *TemplateCheck) KeepsPodResources(ctx context.Context) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.resourcesAskedAt) > resourcesKnownFor {
		ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
		defer cancel()
		answer, err := c.post(ctx, podtemplate.WithPodResources()).Raw()
		c.resourcesAskedAt, c.keepsPodResources = time.Now(), err != nil || podtemplate.HasPodResources(answer)
	}
	return c.keepsPodResources
}
