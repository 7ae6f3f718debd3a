package scale

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/test/deploy"
)

// writes counts the writes that an API server has answered, by the kind of object.
type writes map[string]float64

// writesSoFar reads the API server's own metrics.
func writesSoFar(ctx context.Context, clients kubernetes.Interface) (writes, error) {
	text, err := clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	w := writes{}
	for line := range strings.Lines(string(text)) {
		labels, value, found := strings.Cut(strings.TrimPrefix(line, "apiserver_request_total{"), "} ")
		if !found || !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		label := map[string]string{}
		for part := range strings.SplitSeq(labels, ",") {
			key, quoted, _ := strings.Cut(part, "=")
			label[key] = strings.Trim(quoted, `"`)
		}
		switch label["verb"] {
		case "POST", "PUT", "PATCH", "DELETE", "APPLY":
		default:
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fmt.Errorf("reading %q: %w", line, err)
		}
		what := label["resource"]
		if label["subresource"] != "" {
			what += "/" + label["subresource"]
		}
		w[strings.ToLower(label["verb"])+" "+what] += n
	}
	return w, nil
}

// since returns the writes after an earlier reading, without those of Leases and Events.
func (w writes) since(before writes) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(w)) {
		n := w[what] - before[what]
		if n == 0 || strings.HasSuffix(what, "leases") || strings.HasSuffix(what, " events") {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %.0f", what, n))
	}
	return strings.Join(parts, ", ")
}

// cpu returns the processor time that a replica has taken.
func cpu(t *testing.T, r *deploy.Replica) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
