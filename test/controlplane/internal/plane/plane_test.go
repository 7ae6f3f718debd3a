package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/controlplane/internal/pki"
)

func options() Options {
	return Options{Dir: "/data", Bin: "/bin", BindAddress: "127.0.0.1", APIServers: 1, Full: true}
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*Options)
		want   string // part of the error; none if empty
	}{
		"the usual":                   {func(*Options) {}, ""},
		"two API servers":             {func(o *Options) { o.APIServers = 2 }, ""},
		"an IPv6 address":             {func(o *Options) { o.BindAddress = "::1" }, ""},
		"an additional flag":          {func(o *Options) { o.Args = []string{"kube-apiserver=--v=4"} }, ""},
		"no directory":                {func(o *Options) { o.Dir = "" }, "--dir"},
		"a host name":                 {func(o *Options) { o.BindAddress = "localhost" }, "not an IP address"},
		"no API server":               {func(o *Options) { o.APIServers = 0 }, "0 API servers"},
		"three API servers":           {func(o *Options) { o.APIServers = 3 }, "3 API servers"},
		"nodes without controllers":   {func(o *Options) { o.Full, o.Nodes = false, 1 }, "full"},
		"a flag of no program":        {func(o *Options) { o.Args = []string{"--v=4"} }, "PROGRAM=--flag"},
		"a flag of an unknown one":    {func(o *Options) { o.Args = []string{"kubelet=--v=4"} }, "kubelet"},
		"an argument that is no flag": {func(o *Options) { o.Args = []string{"etcd=v"} }, "etcd=v"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := options()
			tc.change(&o)
			err := o.Validate()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Validate() = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestArgsForOneProgram(t *testing.T) {
	o := options()
	o.Args = []string{"etcd=--a", "kube-apiserver=--feature-gates=A=true,B=false", "etcd=--b=1"}
	if got, want := o.argsFor("etcd"), []string{"--a", "--b=1"}; !slices.Equal(got, want) {
		t.Errorf("etcd gets %q, want %q", got, want)
	}
	if got, want := o.argsFor("kube-apiserver"), []string{"--feature-gates=A=true,B=false"}; !slices.Equal(got, want) {
		t.Errorf("kube-apiserver gets %q, want %q", got, want)
	}
}

func testFiles(t *testing.T) files {
	t.Helper()
	authority, err := pki.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return files{dir: "/data", authority: authority, auditPolicy: "/data/audit"}
}

func TestAPIServerFlags(t *testing.T) {
	const serviceAccountOff, audit = "--disable-admission-plugins=ServiceAccount", "--audit-log-path=/data/logs/kube-apiserver-2.audit.log"
	tests := map[string]struct {
		change        func(*Options)
		with, without []string
	}{
		"the full control plane has ServiceAccount admission": {func(*Options) {}, []string{"--enable-aggregator-routing=true", "--secure-port=7000"}, []string{serviceAccountOff, audit}},
		"an API server alone has none":                        {func(o *Options) { o.Full = false }, []string{serviceAccountOff}, nil},
		"audit is per API server":                             {func(o *Options) { o.Audit = true }, []string{audit, "--audit-policy-file=/data/audit"}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := options()
			tc.change(&o)
			flags := apiServer(&o, testFiles(t), "kube-apiserver-2", "http://127.0.0.1:1").flags([]int{7000})
			for _, want := range tc.with {
				if !slices.Contains(flags, want) {
					t.Errorf("no %s in %q", want, flags)
				}
			}
			for _, other := range tc.without {
				if slices.Contains(flags, other) {
					t.Errorf("%s is in %q", other, flags)
				}
			}
		})
	}
}

func TestEveryServerListensAtTheBindAddress(t *testing.T) {
	o := options()
	o.BindAddress = "127.0.0.9"
	f := testFiles(t)
	for _, c := range []component{etcd(&o, f), apiServer(&o, f, "a", ""), controllerManager(&o, f), scheduler(&o, f), kwok(&o, f)} {
		ports := []int{7001, 7002}[:c.ports]
		all := strings.Join(c.flags(ports), " ")
		if !strings.Contains(all, "127.0.0.9") || strings.Contains(all, "127.0.0.1") || strings.Contains(all, "0.0.0.0") {
			t.Errorf("%s has the flags %s", c.name, all)
		}
		for _, port := range ports {
			if !strings.Contains(all, fmt.Sprint(port)) {
				t.Errorf("%s does not use port %d: %s", c.name, port, all)
			}
		}
		if want := fmt.Sprintf("://127.0.0.9:%d/", ports[0]); !strings.Contains(c.health(ports), want) {
			t.Errorf("the health of %s is asked at %s", c.name, c.health(ports))
		}
	}
}

func TestServingAddressesHoldTheServiceKubernetes(t *testing.T) {
	got := fmt.Sprint(servingAddresses("10.99.0.1"))
	if want := "[127.0.0.1 ::1 10.96.0.1 10.99.0.1]"; got != want {
		t.Errorf("addresses are %s, want %s", got, want)
	}
}

func TestKubeconfigHasAContextPerAPIServer(t *testing.T) {
	authority := testFiles(t).authority
	user, err := authority.Client("admin", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	servers := []endpoint{{"admin", "https://127.0.0.1:1"}, {"admin-2", "https://127.0.0.1:2"}}
	if err := writeKubeconfig(path, authority, user, servers); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Clusters []struct {
			Name    string
			Cluster map[string]string
		}
		Contexts []struct {
			Name    string
			Context map[string]string
		}
		Current string `json:"current-context"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if config.Current != "admin" || len(config.Contexts) != 2 || config.Contexts[1].Name != "admin-2" || config.Contexts[1].Context["cluster"] != "admin-2" {
		t.Errorf("contexts are %+v, current is %s", config.Contexts, config.Current)
	}
	for i, c := range config.Clusters {
		if c.Name != servers[i].context || c.Cluster["server"] != servers[i].url || c.Cluster["certificate-authority-data"] == "" {
			t.Errorf("cluster %d is %+v", i, c)
		}
	}
}

func TestFreePortsDifferAndAreNotEphemeral(t *testing.T) {
	ports, err := freePorts("127.0.0.1", 20)
	if err != nil {
		t.Fatal(err)
	}
	low := ephemeralStart()
	for i, port := range ports {
		if slices.Contains(ports[:i], port) {
			t.Errorf("port %d was given twice", port)
		}
		if low > lowestPort+100 && port >= low {
			t.Errorf("port %d may be the local port of a connection", port)
		}
	}
	if len(ports) != 20 {
		t.Errorf("there are %d ports, want 20", len(ports))
	}
}

func TestAFakeNodeIsMarkedForKwok(t *testing.T) {
	text, err := json.Marshal(fakeNode(4, "v1.37.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"name":"node-4"`, `"kwok.x-k8s.io/node":"fake"`, `"stand.test/kubelet-version":"v1.37.1"`, `"topology.kubernetes.io/zone":"zone-1"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}

func TestParseStartTime(t *testing.T) {
	tests := map[string]struct{ stat, want string }{
		"a usual line":              {"12 (stand) S 1 12 12 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 9 0 146197 99 1", "146197"},
		"a name with a parenthesis": {"12 (a) b (c) S 1 12 12 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 9 0 146197 99 1", "146197"},
		"a short line":              {"12 (stand) S 1", ""},
		"nothing":                   {"", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := parseStartTime(tc.stat); got != tc.want {
				t.Errorf("parseStartTime(%q) = %q, want %q", tc.stat, got, tc.want)
			}
		})
	}
}

func TestIsOursOnlyForTheProcessThatWroteTheInfo(t *testing.T) {
	pid := os.Getpid()
	tests := map[string]struct {
		info Info
		want bool
	}{
		"this process":                  {Info{Pid: pid, StartTime: startTime(pid)}, true},
		"a process with the pid reused": {Info{Pid: pid, StartTime: "1"}, false},
		"a process that is gone":        {Info{Pid: 1 << 30, StartTime: "1"}, false},
		"nothing known":                 {Info{Pid: 1 << 30}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.info.IsOurs(); got != tc.want {
				t.Errorf("IsOurs() = %t, want %t", got, tc.want)
			}
		})
	}
}

func TestDownLeavesAForeignProcessAlone(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	// If Down took this process for the stand, it would end the test.
	if err := (&Info{Dir: dir, Pid: os.Getpid(), StartTime: "1"}).write(); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "not the stand") {
		t.Errorf("Down = %v", err)
	}
}

func TestDownOfNothingSucceeds(t *testing.T) {
	dir := t.TempDir()
	if err := Down(t.Context(), dir); err != nil {
		t.Errorf("in an empty directory: %v", err)
	}
	if err := (&Info{Dir: dir, Pid: os.Getpid(), StartTime: "1"}).write(); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), dir); err != nil {
		t.Errorf("after a stand that died: %v", err)
	}
	if _, err := ReadInfo(dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("ReadInfo after a stand that died = %v", err)
	}
}

func TestOneStandPerDirectory(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if running, err := IsRunning(dir); err != nil || !running {
		t.Errorf("IsRunning = %t, %v while the directory is held", running, err)
	}
	if _, err := lockDir(dir); err == nil {
		t.Error("the directory was taken twice")
	}
	lock.Close()
	if running, err := IsRunning(dir); err != nil || running {
		t.Errorf("IsRunning = %t, %v after it was given back", running, err)
	}
}

func TestDeleteRefusesWhatIsNoStand(t *testing.T) {
	dir := t.TempDir()
	if err := Delete(dir); err == nil {
		t.Error("a directory without a stand was deleted")
	}
	if err := Delete(filepath.Join(dir, "missing")); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func TestControlSocketInALongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	o := options()
	control, err := serveControl(dir, &supervisor{o: &o, info: Info{Dir: dir, Version: "v1.37.1"}, ready: true})
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	info, err := Status(t.Context(), dir)
	if err != nil || info.Version != "v1.37.1" {
		t.Errorf("Status = %+v, %v", info, err)
	}
	if _, err := Kill(t.Context(), dir, "unknown", "KILL"); err == nil || !strings.Contains(err.Error(), `no component "unknown"`) {
		t.Errorf("Kill of an unknown component = %v", err)
	}
	if _, err := Kill(t.Context(), dir, "unknown", "HUP"); err == nil || !strings.Contains(err.Error(), `no signal "HUP"`) {
		t.Errorf("Kill with an unknown signal = %v", err)
	}
}

func TestAStandThatIsStartingIsNotTakenForReady(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	control, err := serveControl(dir, new(supervisor))
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	if info, err := Status(t.Context(), dir); err == nil || !strings.Contains(err.Error(), errStarting.Error()) {
		t.Errorf("Status = %+v, %v", info, err)
	}
	if _, err := ReadInfo(dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("ReadInfo = %v: others take the stand for ready", err)
	}
}

// TestMain lets this binary play a component, when called by the name fake:
//
//	fake MODE PORT
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "fake" {
		os.Exit(m.Run())
	}
	fmt.Println("fake started as", os.Args[1])
	switch os.Args[1] {
	case "die":
		os.Exit(3)
	case "lose-port-once":
		marker := os.Args[3]
		if _, err := os.Stat(marker); err != nil {
			_ = os.WriteFile(marker, nil, 0o600)
			fmt.Println("bind: address already in use")
			os.Exit(1)
		}
	}
	fmt.Println(http.ListenAndServe("127.0.0.1:"+os.Args[2], http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
}

func fake(args ...string) component {
	return component{
		name: "fake", program: "fake", ports: 1,
		flags: func(ports []int) []string {
			return slices.Insert(slices.Clone(args), 1, fmt.Sprint(ports[0]))
		},
		health: func(ports []int) string { return fmt.Sprintf("http://127.0.0.1:%d/", ports[0]) },
	}
}

// fakeSupervisor has a bin directory in which this test binary is called fake.
func fakeSupervisor(t *testing.T) *supervisor {
	t.Helper()
	o := options()
	o.Dir, o.Bin = t.TempDir(), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(self, filepath.Join(o.Bin, "fake")), os.Mkdir(filepath.Join(o.Dir, "logs"), 0o755)); err != nil {
		t.Fatal(err)
	}
	s := &supervisor{o: &o, client: &client{http.DefaultClient}, lost: make(chan *child, 1), ready: true}
	t.Cleanup(s.stopAll)
	return s
}

func TestComponentThatDiesEarlyIsReportedWithItsLog(t *testing.T) {
	s := fakeSupervisor(t)
	err := s.startComponent(t.Context(), fake("die"))
	if err == nil {
		t.Fatal("it started")
	}
	for _, want := range []string{"fake", "exit status 3", filepath.Join(s.o.Dir, "logs", "fake.log"), "fake started as die"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestComponentTriesOtherPortsAfterABindRace(t *testing.T) {
	s := fakeSupervisor(t)
	if err := s.startComponent(t.Context(), fake("lose-port-once", filepath.Join(s.o.Dir, "marker"))); err != nil {
		t.Fatal(err)
	}
	if len(s.children) != 1 || !s.children[0].alive() {
		t.Errorf("there are %d children, want one that lives", len(s.children))
	}
}

func TestAComponentThatDiesUnaskedIsReportedLost(t *testing.T) {
	s := fakeSupervisor(t)
	if err := s.startComponent(t.Context(), fake("serve")); err != nil {
		t.Fatal(err)
	}
	ch := s.find("fake")
	if err := syscall.Kill(ch.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case lost := <-s.lost:
		if lost != ch {
			t.Errorf("%s was lost", lost.name)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing was lost")
	}
}

func TestKillAndRestartKeepThePorts(t *testing.T) {
	s := fakeSupervisor(t)
	if err := s.startComponent(t.Context(), fake("serve")); err != nil {
		t.Fatal(err)
	}
	before := s.find("fake")
	if err := s.kill("fake", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if before.alive() {
		t.Error("it lives after the kill")
	}
	if err := s.restart(context.WithoutCancel(t.Context()), "fake"); err != nil {
		t.Fatal(err)
	}
	after := s.find("fake")
	if after == before || !after.alive() || !slices.Equal(after.listen, before.listen) {
		t.Errorf("restarted at %v, was at %v", after.listen, before.listen)
	}
	select {
	case <-s.lost:
		t.Error("what was asked for counts as a loss")
	default:
	}
}

func TestStoppedProcessCanBeStoppedForGood(t *testing.T) {
	s := fakeSupervisor(t)
	if err := s.startComponent(t.Context(), fake("serve")); err != nil {
		t.Fatal(err)
	}
	if err := s.kill("fake", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ch := s.find("fake")
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ch.listen[0]))
	if err != nil {
		t.Errorf("its port is gone: %v", err)
	} else {
		conn.Close()
	}
	s.stopAll()
	if ch.alive() || syscall.Kill(ch.pid(), 0) == nil {
		t.Errorf("pid %d is there", ch.pid())
	}
}
