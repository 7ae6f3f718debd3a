package prometheus

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/test/testkit"
)

const (
	rulesFile     = "../../charts/sidecarset/rules/sidecarset.yaml"
	dashboardFile = "../../charts/sidecarset/dashboards/sidecarset.json"

	lasting = 2 * time.Hour // of a trouble, and of the time after it
)

// phase is a time in which the replicas show the same: well, or in a trouble.
type phase struct {
	alert string // that fires at the end of the trouble; "" if all is well
	read  map[string]sample
	grow  map[string]sample
	edit  func(series string, value float64) float64
	after time.Duration // that passes before it
}

// The whole story: the replicas of the stand get into one trouble after the other. Prometheus has each
// state for two hours, and the time after it. It must have the alert in the trouble and none after it, and
// know every metric, label and value that an alert or a panel names.
func TestAlertsAndDashboard(t *testing.T) {
	operator.NeedReplicas(t)
	record := recorder{t, scraper(t)}
	namespace := testkit.Namespace(t, api, nil)
	create(t, testkit.NewPatientSet("good", namespace))
	testkit.AwaitReady(t, api, "good")
	create(t, pod(namespace, "well", "good"))
	base := record.until("a Pod that is counted", "sidecarset_matched_pods", nil, func(sum float64, _ scrapes) bool { return sum == 1 })
	story := tell(t, record, base, troubles(t, namespace))
	known := map[string]sample{}
	for _, p := range story {
		maps.Copy(known, p.read)
	}

	t.Run("names", func(t *testing.T) {
		for where, expression := range expressions(t) {
			checkNames(t, where, expression, known)
		}
	})
	s := newServer(t, time.Now().Truncate(time.Minute))
	begin := s.now
	group := s.rules(t)
	t.Run("alerts", func(t *testing.T) {
		fired := map[string]bool{}
		for _, p := range story {
			s.now = s.now.Add(p.after)
			seen := map[string]bool{}
			s.scrape(t, p.edited(), p.grow, lasting, func(now time.Time) {
				group.Eval(t.Context(), now)
				maps.Copy(seen, firing(t, group))
			})
			now := firing(t, group)
			switch {
			case p.alert != "" && !seen[p.alert]:
				t.Errorf("%s does not fire; these do: %q", p.alert, slices.Sorted(maps.Keys(seen)))
			case p.alert == "" && len(now) > 0:
				t.Errorf("all is well, and these fire: %q", slices.Sorted(maps.Keys(now)))
			case p.alert != "":
				fired[p.alert] = true
				t.Logf("%s fires: %q", p.alert, slices.Sorted(maps.Keys(seen)))
			}
		}
		for _, rule := range group.AlertingRules() {
			if !fired[rule.Name()] {
				t.Errorf("%s did not fire", rule.Name())
			}
		}
	})
	t.Run("panels", func(t *testing.T) {
		shows := map[string]bool{} // by panel, whether any of its queries has a value above 0
		for where, expression := range expressions(t) {
			if !strings.HasPrefix(where, "panel ") {
				continue
			}
			query, err := s.engine.NewRangeQuery(t.Context(), s, nil, expression, begin, begin.Add(time.Duration(len(story))*lasting), 5*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			matrix, err := query.Exec(t.Context()).Matrix()
			if err != nil {
				t.Errorf("%s: %s: %v", where, expression, err)
			}
			panel := where[:strings.LastIndex(where, " ")]
			shows[panel] = shows[panel] || slices.ContainsFunc(matrix, func(s promql.Series) bool {
				return slices.ContainsFunc(s.Floats, func(p promql.FPoint) bool { return p.F > 0 })
			})
			query.Close()
		}
		for panel, any := range shows {
			if !any {
				t.Errorf("%s shows nothing but 0", panel)
			}
		}
	})
}

// tell brings the troubles about, and returns what Prometheus reads from the beginning to the end.
func tell(t *testing.T, record recorder, base scrapes, all []trouble) []phase {
	t.Helper()
	read := func(s scrapes) map[string]sample {
		found := map[string]sample{}
		for process, text := range s {
			maps.Copy(found, samples(t, process, text))
		}
		return found
	}
	story := []phase{{read: read(base)}}
	well := func() map[string]sample { return story[len(story)-1].read }
	sumOf := func(s scrapes, of trouble) (sum float64) {
		for _, text := range s {
			n, err := testkit.SumOf(text, of.metric, of.parts...)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		return sum
	}
	for _, trouble := range all {
		if trouble.edit != nil {
			story = append(story, phase{alert: trouble.alert, read: well(), edit: trouble.edit, grow: grown(well(), trouble.edit)}, phase{read: well()})
			continue
		}
		before := record.until("metrics", "sidecarset_build_info", nil, func(float64, scrapes) bool { return true })
		level := sumOf(before, trouble)
		trouble.make(t)
		in := record.until(trouble.alert, trouble.metric, trouble.parts, func(sum float64, _ scrapes) bool {
			return sum > level && !trouble.falls || sum < level && trouble.falls
		})
		if trouble.cure != nil {
			trouble.cure(t)
		}
		after := record.until("the end of "+trouble.alert, trouble.metric, trouble.parts, func(sum float64, all scrapes) bool {
			return all.inForce() && (trouble.cure == nil || sum == level || sum > level && trouble.falls)
		})
		grow := map[string]sample{}
		for key, sample := range read(in) {
			sample.value -= read(before)[key].value
			grow[key] = sample
		}
		story = append(story, phase{alert: trouble.alert, read: read(in), grow: grow}, phase{read: read(after)})
	}

	// A follower alone; no process; and certificates that are not renewed, until new ones are.
	alone := map[string]sample{}
	for process, text := range base {
		if n, err := testkit.SumOf(text, "leader_election_master_status"); err != nil || n == 0 {
			maps.Copy(alone, samples(t, process, text))
		}
	}
	end := well()
	expires := time.Time{}
	for _, sample := range end {
		if at := time.Unix(int64(sample.value), 0); sample.labels.Get(labels.MetricName) == "sidecarset_certificate_not_after_timestamp_seconds" && (expires.IsZero() || at.Before(expires)) {
			expires = at
		}
	}
	renewed := func(series string, value float64) float64 {
		if strings.Contains(series, "sidecarset_certificate_not_after_timestamp_seconds") {
			return value + (365 * 24 * time.Hour).Seconds()
		}
		return value
	}
	late := time.Until(expires) - 6*24*time.Hour - time.Duration(len(story)+4)*lasting
	return append(story,
		phase{alert: "SidecarSetNoLeader", read: alone}, phase{read: end},
		phase{alert: "SidecarSetOperatorAbsent", read: map[string]sample{}}, phase{read: end},
		phase{alert: "SidecarSetCertificateExpires", read: end, after: late}, phase{read: end, edit: renewed})
}

// grown is how much an edit raises counters at each time.
func grown(read map[string]sample, edit func(string, float64) float64) map[string]sample {
	grow := map[string]sample{}
	for key, sample := range read {
		sample.value = edit(strings.TrimPrefix(nameFirst(sample), "{"), sample.value) - sample.value
		grow[key] = sample
	}
	return grow
}

// nameFirst is a series as /metrics has it.
func nameFirst(s sample) string {
	return s.labels.Get(labels.MetricName) + s.labels.String()
}

// edited is what Prometheus reads. Counters are raised by grow.
func (p phase) edited() map[string]sample {
	if p.edit == nil {
		return p.read
	}
	all := maps.Clone(p.read)
	for key, sample := range all {
		if !isCounter(sample.labels.Get(labels.MetricName)) {
			sample.value = p.edit(nameFirst(sample), sample.value)
			all[key] = sample
		}
	}
	return all
}

// rules loads the alerts as Prometheus does.
func (s *server) rules(t *testing.T) *rules.Group {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(s.engine, s), Queryable: s, AppendableV2: s.DB, Context: t.Context(), Parser: promParser,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: slog.New(slog.DiscardHandler),
	})
	groups, errs := manager.LoadGroups(interval, labels.EmptyLabels(), "", nil, false, rulesFile)
	if len(errs) > 0 || len(groups) != 1 {
		t.Fatalf("%d groups of rules, %v", len(groups), errs)
	}
	for _, group := range groups {
		for _, rule := range group.AlertingRules() {
			rule.SetRestored(true)
		}
		return group
	}
	return nil
}

// firing returns the names of the alerts that fire. Their texts have no error of a template.
func firing(t *testing.T, group *rules.Group) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, rule := range group.AlertingRules() {
		if err := rule.LastError(); err != nil {
			t.Errorf("%s: %v", rule.Name(), err)
		}
		for _, alert := range rule.ActiveAlerts() {
			if alert.State != rules.StateFiring {
				continue
			}
			names[rule.Name()] = true
			if text := alert.Annotations.String(); strings.Contains(text, "error") && strings.Contains(text, "template") || strings.Contains(text, "<no value>") {
				t.Errorf("%s says %s", rule.Name(), text)
			}
		}
	}
	return names
}

var variable = strings.NewReplacer("$__rate_interval", "5m", `$sidecarset`, ".+")

// expressions returns those of all alerts and panels, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr, LegendFormat string }
		}
	}
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &alerts); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(dashboardFile); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, rule := range alerts.Groups[0].Rules {
		all["alert "+rule.Alert] = rule.Expr
	}
	legend := regexp.MustCompile(`{{(\w+)}}`)
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			all["panel "+panel.Title+" "+target.RefID] = variable.Replace(target.Expr)
			for _, label := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !regexp.MustCompile(`by \([a-z, ]*\b` + label[1] + `\b`).MatchString(target.Expr) {
					t.Errorf("the legend of panel %s has %s, by which the query does not group", panel.Title, label[1])
				}
			}
		}
	}
	return all
}

// checkNames holds the metrics, labels and values of an expression to the series that were read.
func checkNames(t *testing.T, where, expression string, known map[string]sample) {
	t.Helper()
	parsed, err := promParser.ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	var grouping []string
	has := map[string]bool{} // labels of the metrics in the expression
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.AggregateExpr:
			grouping = append(grouping, n.Grouping...)
		case *parser.VectorSelector:
			found := false
			for _, sample := range known {
				matches := true
				for _, matcher := range n.LabelMatchers {
					matches = matches && sample.labels.Has(matcher.Name) && matcher.Matches(sample.labels.Get(matcher.Name))
				}
				if matches {
					found = true
					sample.labels.Range(func(l labels.Label) { has[l.Name] = true })
				}
			}
			if !found {
				t.Errorf("%s: /metrics of no replica has %s", where, n)
			}
			for _, matcher := range n.LabelMatchers {
				for value := range strings.SplitSeq(matcher.Value, "|") {
					if matcher.Type == labels.MatchRegexp && !strings.ContainsAny(value, ".+*") && !slices.ContainsFunc(slices.Collect(maps.Values(known)), func(s sample) bool {
						return s.labels.Get(labels.MetricName) == n.Name && s.labels.Get(matcher.Name) == value
					}) {
						t.Errorf("%s: /metrics of no replica has %s with %s=%q", where, n.Name, matcher.Name, value)
					}
				}
			}
		}
		return nil
	})
	for _, label := range grouping {
		if !has[label] {
			t.Errorf("%s groups by %s, which no metric in it has", where, label)
		}
	}
}
