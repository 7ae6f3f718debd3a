package sidecarsets_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

// apiServer answers questions about containers, without a network. test/integration asks a real one.
type apiServer struct {
	t      *testing.T
	answer func(template map[string]any) (int, any) // nil: the template itself

	mu       sync.Mutex
	asked    []string
	registry *prometheus.Registry // has the metrics of check
}

// RoundTrip implements http.RoundTripper. It ends with the request's context.
func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.RequestURI())
	s.mu.Unlock()
	var template map[string]any
	if err := json.NewDecoder(r.Body).Decode(&template); err != nil {
		s.t.Error(err)
	}
	answered := make(chan *http.Response, 1)
	go func() {
		code, body := http.StatusCreated, any(template)
		if s.answer != nil {
			code, body = s.answer(template)
		}
		w := httptest.NewRecorder()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(body); err != nil {
			s.t.Error(err)
		}
		answered <- w.Result()
	}()
	select {
	case answer := <-answered:
		return answer, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (s *apiServer) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

func (s *apiServer) check() *sidecarsets.TemplateCheck {
	s.t.Helper()
	s.registry = prometheus.NewRegistry()
	check, err := sidecarsets.NewTemplateCheck(&rest.Config{Host: "http://api", QPS: -1}, &http.Client{Transport: s}, "ours", s.registry)
	if err != nil {
		s.t.Fatal(err)
	}
	return check
}

// counted returns the result that the metric of check has counted once; "" if it has counted nothing.
func (s *apiServer) counted() (result string) {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "sidecarset_template_checks_total" {
		s.t.Fatalf("gathered %v, %v", families, err)
	}
	for _, metric := range families[0].GetMetric() {
		if metric.GetCounter().GetValue() == 1 {
			result += metric.GetLabel()[0].GetValue()
		}
	}
	return result
}

// validator returns a webhook that asks s.
func (s *apiServer) validator() http.Handler {
	reader := &live{}
	return sidecarsets.NewValidator(sidecarsets.ValidatorOptions{Stored: reader.store, Reader: reader, Namespace: "ours", Template: s.check()})
}

func invalid(fields ...string) func(map[string]any) (int, any) { return invalidValue("", fields...) }

func invalidValue(value any, fields ...string) func(map[string]any) (int, any) {
	return func(map[string]any) (int, any) {
		var errs field.ErrorList
		for _, f := range fields {
			errs = append(errs, &field.Error{Type: field.ErrorTypeInvalid, Field: f, BadValue: value, Detail: "must be y"})
		}
		return http.StatusUnprocessableEntity, asStatus(apierrors.NewInvalid(schema.GroupKind{Kind: "PodTemplate"}, "a", errs))
	}
}

func forbidden(map[string]any) (int, any) {
	return http.StatusForbidden, asStatus(apierrors.NewForbidden(schema.GroupResource{Resource: "podtemplates"}, "", errors.New("nobody may")))
}

// asStatus is how an API server sends an error.
func asStatus(err *apierrors.StatusError) metav1.Status {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return status
}

const unchecked = "spec: the API server could not check the containers and volumes, so that it may refuse Pods with them: "

func TestTheAPIServerIsAskedAboutContainers(t *testing.T) {
	tests := map[string]struct {
		manifest, old string
		answer        func(map[string]any) (int, any)
		questions     int
		counted       string
		refused       []string // fields
		warned        string   // how a warning begins
	}{
		"it accepts":                    {manifest: betaManifest, questions: 1, counted: "accepted"},
		"it refuses":                    {manifest: betaManifest, answer: invalid("template.spec.containers[0].env[0].name"), questions: 1, counted: "rejected", refused: []string{"spec.containers[0].env[0].name"}},
		"it refuses, and a rule does":   {manifest: strings.Replace(betaManifest, "1.36", "1.36 ", 1), answer: invalid("template.spec.containers[0].env[0].name"), questions: 1, counted: "rejected", refused: []string{"spec.containers[0].image", "spec.containers[0].env[0].name"}},
		"a fault of what Pods bring":    {manifest: betaManifest, answer: invalid("template.spec.hostNetwork"), questions: 1, counted: "accepted", warned: "spec: API servers refuse a Pod with these sidecars unless its own spec.hostNetwork is right"},
		"a policy with the same status": {manifest: betaManifest, answer: invalid(""), questions: 1, counted: "unchecked", warned: unchecked},
		"a policy about one of both":    {manifest: betaManifest, answer: invalid("template.spec.volumes[0]", "spec.x"), questions: 1, counted: "unchecked", warned: unchecked},
		"a policy that sets a value":    {manifest: betaManifest, answer: invalidValue("Bogus", "template.spec.containers[0].imagePullPolicy"), questions: 1, counted: "unchecked", warned: unchecked + "another program has changed the question"},
		"a policy that adds a value":    {manifest: betaManifest, answer: invalidValue("Bogus", "template.spec.containers[0].env[0].name"), questions: 1, counted: "unchecked", warned: unchecked + "another program has changed the question"},
		"nobody may ask":                {manifest: betaManifest, answer: forbidden, questions: 1, counted: "unchecked", warned: unchecked + "podtemplates is forbidden: nobody may"},
		"an answer that is none":        {manifest: betaManifest, answer: func(map[string]any) (int, any) { return http.StatusOK, "hello" }, questions: 1, counted: "unchecked", warned: unchecked},
		"an update of the strategy":     {manifest: betaManifest + "  injectionStrategy: {paused: true}\n", old: betaManifest, answer: forbidden},
		"an update of what no Pod has":  {manifest: strings.Replace(betaManifest, "name: agent", "name: agent, podInjectPolicy: AfterAppContainer", 1), old: betaManifest, answer: forbidden},
		"an update of what was wrong":   {manifest: strings.Replace(betaManifest, "1.36", "1.37", 1), old: betaManifest, answer: invalid("template.spec.containers[0].env[0].name"), questions: 2, counted: "rejected", warned: `spec.containers[0].env[0].name: Invalid value: "": must be y (container agent) (the stored SidecarSet has this problem already)`},
		"an update that makes it worse": {manifest: betaManifest + "  imagePullSecrets: [{name: s}]\n", old: betaManifest, questions: 2, counted: "rejected", refused: []string{"spec.containers[0].env[0].name"}, answer: func(template map[string]any) (int, any) {
			if spec := template["template"].(map[string]any)["spec"].(map[string]any); spec["imagePullSecrets"] == nil {
				return http.StatusCreated, template
			}
			return invalid("template.spec.containers[0].env[0].name")(template)
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &apiServer{t: t, answer: tc.answer}
			old := tc.old
			if old != "" {
				old = defaulted(t, old)
			}
			answer := fixtures.Review(t, s.validator(), sidecarSetReview(t, defaulted(t, tc.manifest), old))
			var refused []string
			if !answer.Allowed {
				for _, cause := range answer.Result.Details.Causes {
					refused = append(refused, cause.Field)
				}
			}
			if !slices.Equal(refused, tc.refused) {
				t.Errorf("refused for %q, want %q", refused, tc.refused)
			}
			about := slices.ContainsFunc(answer.Warnings, func(w string) bool { return tc.warned != "" && strings.HasPrefix(w, tc.warned) })
			if about != (tc.warned != "") || tc.warned == "" && strings.Contains(strings.Join(answer.Warnings, ""), unchecked) {
				t.Errorf("warnings are %q, want %q", answer.Warnings, tc.warned)
			}
			if got := s.questions(); got != tc.questions {
				t.Errorf("%d questions, want %d", got, tc.questions)
			}
			if got := s.counted(); got != tc.counted {
				t.Errorf("counted %q, want %q", got, tc.counted)
			}
			for _, url := range s.asked {
				if url != "/api/v1/namespaces/ours/podtemplates?dryRun=All&fieldValidation=Warn" {
					t.Errorf("it asked %s", url)
				}
			}
		})
	}
}

// An API server that does not answer holds up a SidecarSet for a bounded time only.
func TestAnAPIServerThatDoesNotAnswerRefusesNoSidecarSet(t *testing.T) {
	body := sidecarSetReview(t, defaulted(t, betaManifest), "")
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		s := &apiServer{t: t, answer: func(template map[string]any) (int, any) { <-end; return http.StatusCreated, template }}
		answer := fixtures.Review(t, s.validator(), body)
		if !answer.Allowed || len(answer.Warnings) != 1 || answer.Warnings[0] != unchecked+"it has not answered within 2s" {
			t.Errorf("allowed is %v, warnings are %q", answer.Allowed, answer.Warnings)
		}
	})
}

// Any Pod can send reviews. A flood of them asks a bounded number of questions. The SidecarSets
// beyond it are admitted with a warning. Those that a rule refuses ask none while fewer than half
// of the questions are left. In a bubble, no time passes while a review is answered.
func TestAFloodOfReviewsAsksFewQuestions(t *testing.T) {
	good := sidecarSetReview(t, defaulted(t, betaManifest), "")
	refused := sidecarSetReview(t, defaulted(t, strings.Replace(betaManifest, "1.36", "1.36 ", 1)), "")
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{t: t}
		webhook := s.validator()
		flood := func(body []byte, clients, reviews int) (asked, unknown int) {
			before := s.questions()
			var without atomic.Int32
			var group sync.WaitGroup
			for range clients {
				group.Go(func() {
					for range reviews / clients {
						if isUnchecked(fixtures.Review(t, webhook, body)) {
							without.Add(1)
						}
					}
				})
			}
			group.Wait()
			return s.questions() - before, int(without.Load())
		}
		for _, step := range []struct {
			after            time.Duration
			body             []byte
			clients, reviews int
			asked, unknown   int
		}{
			{0, good, 10, 600, 500, 100},
			{time.Second, good, 10, 40, 20, 20},
			{12 * time.Second, refused, 10, 40, 0, 0}, // 240 are left
			{time.Second, refused, 1, 40, 11, 0},      // 260
			{0, good, 10, 10, 10, 0},
		} {
			<-time.After(step.after)
			if asked, unknown := flood(step.body, step.clients, step.reviews); asked != step.asked || unknown != step.unknown {
				t.Errorf("%d reviews after %s: %d questions, %d SidecarSets are unchecked, want %d and %d",
					step.reviews, step.after, asked, unknown, step.asked, step.unknown)
			}
		}
	})
}

func isUnchecked(answer *admissionv1.AdmissionResponse) bool {
	return answer.Allowed && slices.ContainsFunc(answer.Warnings, func(w string) bool { return strings.HasPrefix(w, unchecked) })
}

// What API servers keep of Pods is asked once in a minute.
func TestTheAPIServerIsAskedWhetherItKeepsResourcesOfPods(t *testing.T) {
	drops := func(template map[string]any) (int, any) {
		delete(template["template"].(map[string]any)["spec"].(map[string]any), "resources")
		return http.StatusCreated, template
	}
	for name, tc := range map[string]struct {
		answer func(map[string]any) (int, any)
		want   bool
	}{"it keeps them": {nil, true}, "it drops them": {drops, false}, "it does not say": {forbidden, true}} {
		t.Run(name, func(t *testing.T) {
			s := &apiServer{t: t, answer: tc.answer}
			check := s.check()
			for range 3 {
				if got := check.KeepsPodResources(t.Context()); got != tc.want || s.questions() != 1 {
					t.Errorf("got %v after %d questions, want %v after one", got, s.questions(), tc.want)
				}
			}
		})
	}
}
