package operator

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
		if o := parse(t, "", "--pprof-bind-address="+address); o.manager(nil).PprofBindAddress != address {
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

// The table of flags in docs/flags.md is that of --help. It has flags of logging by
// their prefix.
func TestFlagsAreDocumentedWithTheirDefaults(t *testing.T) {
	documented := documentedFlags(t)
	excluded, sans := "", ""
	(&Options{}).flags(&excluded, &sans).VisitAll(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "zap-") {
			return
		}
		value, ok := documented[f.Name]
		switch {
		case !ok:
			t.Errorf("--%s is not in docs/flags.md", f.Name)
		case !sameDefault(value, f.DefValue):
			t.Errorf("docs/flags.md says that the default of --%s is %q, and it is %q", f.Name, value, f.DefValue)
		}
		delete(documented, f.Name)
	})
	for name := range documented {
		if name != "zap-log-level" {
			t.Errorf("docs/flags.md names --%s, which there is not", name)
		}
	}
}

// documentedFlags reads the defaults that the document says.
func documentedFlags(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	name := regexp.MustCompile("`--([a-z0-9.-]+)`")
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(cells[1], " `--") {
			continue
		}
		names, defaults := name.FindAllStringSubmatch(cells[1], -1), strings.Split(cells[2], ",")
		for i, match := range names {
			if _, ok := found[match[1]]; ok {
				continue // another table
			}
			found[match[1]] = strings.Trim(defaults[min(i, len(defaults)-1)], " `")
		}
	}
	return found
}

// sameDefault compares the default in the document with that of the flag. A default that
// takes more than a word is not compared.
func sameDefault(said, value string) bool {
	if d, err := time.ParseDuration(said); err == nil {
		return d.String() == value
	}
	words := map[string]string{"on": "true", "off": "false", "in-cluster": ""}
	if word, ok := words[said]; ok {
		return word == value
	}
	return said == value || slices.Contains([]string{"$POD_NAMESPACE", "the operator's own"}, strings.Trim(said, "`"))
}
