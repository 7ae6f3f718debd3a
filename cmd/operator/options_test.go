package operator

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
)

func parse(t *testing.T, namespace string, args ...string) Options {
	t.Helper()
	o, err := ParseOptions(args, func(string) string { return namespace })
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestNamespaceComesFromTheFlagThenThePodThenTheDefault(t *testing.T) {
	tests := map[string]struct {
		env  string
		args []string
		want string
	}{
		"flag":    {"pod", []string{"--namespace=flag"}, "flag"},
		"Pod":     {"pod", nil, "pod"},
		"default": {"", nil, "sidecarset-system"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := parse(t, tc.env, tc.args...)
			if o.namespace != tc.want {
				t.Errorf("namespace is %q, want %q", o.namespace, tc.want)
			}
			if diff := cmp.Diff([]string{"kube-system", tc.want}, o.excludedNamespaces); diff != "" {
				t.Errorf("excluded namespaces (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheCertificateIsForTheURL(t *testing.T) {
	for args, want := range map[string]string{
		"--pod-webhook-url=https://127.0.0.1:9443":                                    "the serving certificate is not for 127.0.0.1: add it to --webhook-san",
		"--pod-webhook-url=https://[::1]:9443 --webhook-san=0:0::1":                   "",
		"--pod-webhook-url=https://example.com/x --webhook-san=127.0.0.1":             "the serving certificate is not for example.com",
		"--pod-webhook-url=https://example.com/x --webhook-san=127.0.0.1,example.com": "",
	} {
		_, err := ParseOptions(strings.Fields(args), func(string) string { return "" })
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}

func TestTheCertificateNamesTheServicesAndMore(t *testing.T) {
	subject := parse(t, "ns", "--webhook-service=svc", "--webhook-san=127.0.0.1,example.com").certificates().Subject
	if diff := cmp.Diff([]string{"svc.ns.svc", "sidecarset-metrics.ns.svc", "example.com"}, subject.DNSNames); diff != "" {
		t.Errorf("DNS names (-want +got):\n%s", diff)
	}
	if len(subject.IPs) != 1 || subject.IPs[0].String() != "127.0.0.1" {
		t.Errorf("IP addresses are %v", subject.IPs)
	}
}

func TestBadFlagsAreNamedWithTheRemedy(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"an unknown role":           {[]string{"--role=both"}, "use all, webhook or controller"},
		"a negative grace":          {[]string{"--drain-grace=-1s"}, "not negative"},
		"a list with semicolons":    {[]string{"--excluded-namespaces=a;b"}, `"a;b" is not the name of a namespace`},
		"a namespace with capitals": {[]string{"--excluded-namespaces=kube-system,Team"}, `"Team" is not the name of a namespace`},
		"a stray argument":          {[]string{"serve"}, `"serve"`},
		"a flag of another program": {[]string{"--enable-everything"}, "enable-everything"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParseOptions(tc.args, func(string) string { return "" })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestProfilesAreServedOnLoopbackOnly(t *testing.T) {
	for _, address := range []string{"", "127.0.0.1:6060", "[::1]:6060"} {
		if o := parse(t, "", "--pprof-bind-address="+address); o.manager().PprofBindAddress != address {
			t.Errorf("%q is not what is served on", address)
		}
	}
	for _, address := range []string{":6060", "0.0.0.0:6060", "10.0.0.1:6060", "localhost:6060", "127.0.0.1"} {
		_, err := ParseOptions([]string{"--pprof-bind-address=" + address}, func(string) string { return "" })
		if err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%q: %v, want a refusal", address, err)
		}
	}
}

// The table of flags in the documents is that of --help, without those of logging libraries.
func TestFlagsAreDocumented(t *testing.T) {
	want := "| Flag | Default | Meaning |\n|---|---|---|\n"
	excluded, sans := "", ""
	(&Options{namespace: defaultNamespace}).flags(&excluded, &sans).VisitAll(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "zap-") {
			return
		}
		value, usage := flag.UnquoteUsage(f)
		name, shown := "--"+f.Name, f.DefValue
		if value != "" {
			name += "=" + strings.ToUpper(value)
		}
		if shown != "" {
			shown = "`" + shown + "`"
		}
		want += fmt.Sprintf("| `%s` | %s | %s |\n", name, shown, usage)
	})
	fixtures.CheckWritten(t, "../../docs/reference/flags.md", "flags", want, "go test ./cmd/operator -run Documented -update")
}
