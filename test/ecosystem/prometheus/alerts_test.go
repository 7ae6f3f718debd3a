// Package prometheus gives the alerts and the dashboard of the chart to Prometheus's own engine. That the names
// in them are the operator's is a test of package docs.
package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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
	"github.com/prometheus/prometheus/tsdb"
)

const (
	rulesFile     = "../../../charts/sidecarset/rules/sidecarset.yaml"
	dashboardFile = "../../../charts/sidecarset/dashboards/sidecarset.json"
	interval      = time.Minute // between two scrapes, and two evaluations
	lasting       = 120         // intervals
)

var (
	begin      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	promParser = parser.NewParser(parser.Options{})
)

// inDays is the time so many days after the beginning.
func inDays(days int) string { return fmt.Sprint(begin.AddDate(0, 0, days).Unix()) }

// well is what replicas show if all is well: the values of each series for two hours, in the notation of Prometheus's own tests.
var well = map[string]string{
	`sidecarset_build_info{version="v1"}`:                                       "1x120",
	`leader_election_master_status{name="sidecarset-operator"}`:                 "1x120",
	`sidecarset_pod_admissions_total{result="injected"}`:                        "0+5x120",
	`sidecarset_pod_admissions_total{result="error"}`:                           "0x120",
	`sidecarset_pod_admissions_total{result="invalid"}`:                         "0x120",
	`sidecarset_injections_total{sidecarset="log", result="injected"}`:          "0+5x120",
	`sidecarset_injections_total{sidecarset="log", result="denied"}`:            "0x120",
	`sidecarset_ready{sidecarset="log"}`:                                        "1x120",
	`sidecarset_uninjected_pods{sidecarset="log"}`:                              "0x120",
	`sidecarset_degraded{sidecarset="log"}`:                                     "0x120",
	`sidecarset_uncounted_pods`:                                                 "0x120",
	`sidecarset_webhook_rejected_requests_total{group="pods", reason="busy"}`:   "0x120",
	`sidecarset_webhook_rejected_requests_total{group="pods", reason="memory"}`: "0x120",
	`sidecarset_pod_webhook_foreign_total`:                                      "0x120",
	`sidecarset_other_injectors`:                                                "0x120",
	`sidecarset_certificate_not_after_timestamp_seconds{certificate="serving"}`: inDays(60) + "x120",
	`sidecarset_certificate_pending_seconds`:                                    "0x120",
	`sidecarset_ca_writes_total{change="replaced"}`:                             "0x120",
	`sidecarset_ca_bundle_objects_missing`:                                      "0x120",
	// New Pods of this one get an earlier revision, for 19 minutes: that is meant.
	`sidecarset_ready{sidecarset="held"}`:         "1x100 0x18",
	`sidecarset_new_pods_held{sidecarset="held"}`: "0x100 1x18",
	`sidecarset_new_pods_held{sidecarset="log"}`:  "0x120",
}

// An alert fires in its trouble, and no other does. In each row, one series has other values.
func TestAlerts(t *testing.T) {
	tests := []struct{ alert, series, values string }{
		{"", "", ""},
		{"SidecarSetOperatorAbsent", `sidecarset_build_info{version="v1"}`, "_x120"},
		{"SidecarSetNoLeader", `leader_election_master_status{name="sidecarset-operator"}`, "0x120"},
		{"SidecarSetAdmissionErrors", `sidecarset_pod_admissions_total{result="error"}`, "0+1x120"},
		{"SidecarSetAdmissionErrors", `sidecarset_pod_admissions_total{result="invalid"}`, "0+1x120"},
		{"SidecarSetPodsDenied", `sidecarset_injections_total{sidecarset="log", result="denied"}`, "0+1x120"},
		{"SidecarSetNotReady", `sidecarset_ready{sidecarset="log"}`, "0x120"},
		{"", `sidecarset_ready{sidecarset="log"}`, "1x111 0x8"}, // not for ten minutes yet
		{"SidecarSetNewPodsHeld", `sidecarset_new_pods_held{sidecarset="log"}`, "1x120"},
		{"SidecarSetUninjectedPods", `sidecarset_uninjected_pods{sidecarset="log"}`, "2x120"},
		{"SidecarSetDegraded", `sidecarset_degraded{sidecarset="log"}`, "1x120"},
		{"SidecarSetUncountedPods", `sidecarset_uncounted_pods`, "1x120"},
		{"SidecarSetRequestsTurnedAway", `sidecarset_webhook_rejected_requests_total{group="pods", reason="busy"}`, "0+60x120"},
		{"SidecarSetRequestsTurnedAway", `sidecarset_webhook_rejected_requests_total{group="pods", reason="memory"}`, "0+60x120"},
		{"SidecarSetWebhooksModified", `sidecarset_pod_webhook_foreign_total`, "0x115 1x4"},
		{"SidecarSetAnotherInjector", `sidecarset_other_injectors`, "1x120"},
		{"SidecarSetCertificateExpires", `sidecarset_certificate_not_after_timestamp_seconds{certificate="serving"}`, inDays(6) + "x120"},
		{"SidecarSetCertificatePending", `sidecarset_certificate_pending_seconds`, "4000x120"},
		{"SidecarSetCAReplaced", `sidecarset_ca_writes_total{change="replaced"}`, "0x115 1x4"},
		{"SidecarSetManifestsMissing", `sidecarset_ca_bundle_objects_missing`, "1x120"},
	}
	fired := map[string]bool{}
	for _, tc := range tests {
		t.Run(tc.alert+" "+tc.series, func(t *testing.T) {
			s := newServer(t, tc.series, tc.values)
			group := s.rules(t)
			for i := range lasting {
				group.Eval(t.Context(), begin.Add(time.Duration(i)*interval))
			}
			var want []string
			if tc.alert != "" {
				want = []string{tc.alert}
			}
			if got := firing(t, group); !slices.Equal(got, want) {
				t.Errorf("%q fire, want %q", got, want)
			}
			fired[tc.alert] = true
		})
	}
	for _, rule := range newServer(t, "", "").rules(t).AlertingRules() {
		if !fired[rule.Name()] {
			t.Errorf("there is no case of %s", rule.Name())
		}
	}
}

// Every query of a panel can be answered, and its legend has labels by which the query groups.
func TestPanels(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	text, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, queries := newServer(t, "", ""), 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries++
			expression := strings.NewReplacer("$__rate_interval", "5m", `$sidecarset`, ".+").Replace(target.Expr)
			query, err := s.engine.NewInstantQuery(t.Context(), s, nil, expression, begin.Add(lasting*interval))
			if err != nil {
				t.Fatal(err)
			}
			if result := query.Exec(t.Context()); result.Err != nil {
				t.Errorf("panel %s: %s: %v", panel.Title, expression, result.Err)
			}
			query.Close()
			for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !regexp.MustCompile(`by \([a-z, ]*\b` + label[1] + `\b`).MatchString(target.Expr) {
					t.Errorf("the legend of panel %s has %s, by which the query does not group", panel.Title, label[1])
				}
			}
		}
	}
	if queries < 10 {
		t.Errorf("%d queries were found", queries)
	}
}

// server is a Prometheus without the network: a storage, and the engine of queries.
type server struct {
	*tsdb.DB
	engine *promql.Engine
}

// newServer has scraped for two hours what is well, but for one series with other values.
func newServer(t *testing.T, other, values string) *server {
	t.Helper()
	options := tsdb.DefaultOptions()
	options.RetentionDuration = 0
	db, err := tsdb.Open(t.TempDir(), nil, nil, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 50e6, Timeout: time.Minute, Parser: promParser})
	t.Cleanup(func() { _ = engine.Close() })
	if _, known := well[other]; other != "" && !known {
		t.Fatalf("%s is not among what is well", other)
	}
	appender := db.Appender(t.Context())
	for series, usual := range well {
		if series == other {
			usual = values
		}
		l, sequence, err := promParser.ParseSeriesDesc(series + " " + usual)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range sequence {
			if v.Omitted {
				continue
			}
			if _, err := appender.Append(0, l, begin.Add(time.Duration(i)*interval).UnixMilli(), v.Value); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := appender.Commit(); err != nil {
		t.Fatal(err)
	}
	return &server{db, engine}
}

// rules loads the alerts as Prometheus does.
func (s *server) rules(t *testing.T) *rules.Group {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(s.engine, s), Queryable: s, Appendable: s.DB, Context: t.Context(), Parser: promParser,
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
func firing(t *testing.T, group *rules.Group) (names []string) {
	t.Helper()
	for _, rule := range group.AlertingRules() {
		if err := rule.LastError(); err != nil {
			t.Errorf("%s: %v", rule.Name(), err)
		}
		for _, alert := range rule.ActiveAlerts() {
			if alert.State != rules.StateFiring {
				continue
			}
			names = append(names, rule.Name())
			if text := alert.Annotations.String(); strings.Contains(text, "error") && strings.Contains(text, "template") || strings.Contains(text, "<no value>") {
				t.Errorf("%s says %s", rule.Name(), text)
			}
		}
	}
	return names
}
