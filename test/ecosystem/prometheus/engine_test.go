package prometheus

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

const interval = time.Minute // between two scrapes, and two evaluations

var promParser = parser.NewParser(parser.Options{})

// server is a Prometheus without the network: a storage, and the engine of queries.
type server struct {
	*tsdb.DB
	engine *promql.Engine
	now    time.Time

	counters map[string]float64 // what the samples of a counter are above what was read
	last     map[string]labels.Labels
}

func newServer(t *testing.T, begin time.Time) *server {
	t.Helper()
	options := tsdb.DefaultOptions()
	options.RetentionDuration = 0
	options.MinBlockDuration = (365 * 24 * time.Hour).Milliseconds() // one block, so that nothing is compacted
	options.MaxBlockDuration = options.MinBlockDuration
	db, err := tsdb.Open(t.TempDir(), nil, nil, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 50e6, Timeout: 5 * time.Minute, Parser: promParser})
	t.Cleanup(func() { _ = engine.Close() })
	return &server{DB: db, engine: engine, now: begin, counters: map[string]float64{}, last: map[string]labels.Labels{}}
}

// sample is one line of what a process exposes.
type sample struct {
	labels labels.Labels
	value  float64
}

// samples reads the metrics of the operator and of its leader election from the text of a process.
func samples(t *testing.T, process, text string) map[string]sample {
	t.Helper()
	all := map[string]sample{}
	for p := textparse.NewPromParser([]byte(text), labels.NewSymbolTable(), false); ; {
		kind, err := p.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if kind != textparse.EntrySeries {
			continue
		}
		var l labels.Labels
		p.Labels(&l)
		if name := l.Get(labels.MetricName); !strings.HasPrefix(name, "sidecarset_") && name != "leader_election_master_status" {
			continue
		}
		_, _, v := p.Series()
		l = labels.NewBuilder(l).Set("job", "sidecarset-metrics").Set("instance", process).Labels()
		all[l.String()] = sample{l, v}
	}
}

func isCounter(name string) bool {
	for _, suffix := range []string{"_total", "_bucket", "_sum", "_count"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// scrape stores what was read, for all times of a duration, and calls evaluate at each. The counters
// rise by grow at each time: what happened once goes on happening.
func (s *server) scrape(t *testing.T, read, grow map[string]sample, during time.Duration, evaluate func(time.Time)) {
	t.Helper()
	for end := s.now.Add(during); s.now.Before(end); s.now = s.now.Add(interval) {
		appender := s.Appender(t.Context())
		add := func(l labels.Labels, v float64) {
			if _, err := appender.Append(0, l, s.now.UnixMilli(), v); err != nil {
				t.Fatal(err)
			}
		}
		for key, l := range s.last {
			if _, here := read[key]; !here {
				add(l, math.Float64frombits(value.StaleNaN))
				delete(s.last, key)
			}
		}
		for key, sample := range read {
			if isCounter(sample.labels.Get(labels.MetricName)) {
				s.counters[key] += grow[key].value
				sample.value += s.counters[key]
			}
			add(sample.labels, sample.value)
			s.last[key] = sample.labels
		}
		if err := appender.Commit(); err != nil {
			t.Fatal(err)
		}
		evaluate(s.now)
	}
}
