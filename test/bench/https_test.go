package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/webhooks/server"
)

// site is a server that answers over HTTPS. Each is a process of its own.
type site string

const (
	static     site = "static"     // reads the body and writes an answer of the size that the path says: no site can be faster
	operator   site = "ours"       // the operator's handler on the operator's own server
	comparison site = "comparator" // the comparator on a server of net/http
)

// siteVariable makes this test binary a site.
const siteVariable = "BENCH_SITE"

func TestMain(m *testing.M) {
	logf.SetLogger(logr.Discard())
	if name := os.Getenv(siteVariable); name != "" {
		runtime.GOMAXPROCS(1)
		fmt.Println(serve(site(name)))
		_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark is over
		return
	}
	os.Exit(m.Run())
}

// serve serves a site on a loopback port, and returns the address.
func serve(name site) net.Addr {
	ca := must(certs.IssueCA("bench", time.Now(), 24*time.Hour))
	leaf := must(ca.IssueLeaf(certs.Subject{IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}))
	sets := sidecarSets(100)
	if name == operator {
		bounded := server.New(server.Options{
			Address:        "127.0.0.1:0",
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return leaf, nil },
		})
		bounded.Register(server.GroupPods, "/{size}", newOurs(sets).Handle)
		go func() { panic(bounded.Start(context.Background())) }()
		_ = await.Until(context.Background(), func(context.Context) error {
			if bounded.Addr() == nil {
				return io.EOF
			}
			return nil
		})
		return bounded.Addr()
	}
	handler := newComparator(sets)
	if name == static {
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // as every webhook has to
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(make([]byte, must(strconv.Atoi(path.Base(r.URL.Path)))))
		})
	}
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	// The protocols with which an API server calls a Service: HTTP/1.1 and TLS 1.3.
	plain := &http.Server{Handler: handler, Protocols: new(http.Protocols), TLSConfig: &tls.Config{Certificates: []tls.Certificate{*leaf}, MinVersion: tls.VersionTLS13}}
	plain.Protocols.SetHTTP1(true)
	go func() { panic(plain.ServeTLS(listener, "", "")) }()
	return listener.Addr()
}

// BenchmarkHTTPS compares whole servers, as API servers call them: 16 requests are in flight on kept connections. It reports
// the CPU time of a site per request, in µs. Each site and the client have one processor.
func BenchmarkHTTPS(b *testing.B) {
	sites := []site{static, operator, comparison}
	for _, c := range []scenario{{"9KB", matched}, {"9KB", none}, {"60KB", matched}} {
		b.Run(c.String(), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			body, running := c.review(newOurs(sidecarSets(100))), map[site]*process{}
			for _, name := range sites {
				running[name] = start(b, name)
			}
			size := must(running[operator].send(body, 0)) // that of the operator's answer
			for _, name := range sites {
				p := running[name]
				p.turn(b, body, size) // warms it up
				p.began, p.requests, p.lasted = p.cpu(), 0, 0
			}
			for b.Loop() {
				for _, name := range sites {
					running[name].turn(b, body, size)
				}
			}
			b.ReportMetric(0, "ns/op") // not printed
			perRequest := map[site]float64{}
			for _, name := range sites {
				p := running[name]
				perRequest[name] = (p.cpu() - p.began).Seconds() * 1e6 / float64(p.requests)
				b.ReportMetric(perRequest[name], string(name)+"-µs")
				b.ReportMetric(float64(p.requests)/p.lasted.Seconds(), string(name)+"-requests/s")
			}
			b.ReportMetric(perRequest[operator]/perRequest[static], "ours-times-static")
		})
	}
}

// process is a running site.
type process struct {
	command *exec.Cmd
	address string
	client  *http.Transport

	began    time.Duration // CPU time
	requests int
	lasted   time.Duration
}

func start(b *testing.B, name site) *process {
	b.Helper()
	command := exec.CommandContext(b.Context(), must(os.Executable()))
	command.Env, command.Stderr = append(os.Environ(), siteVariable+"="+string(name)), os.Stderr
	in, out := must(command.StdinPipe()), must(command.StdoutPipe())
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = command.Wait()
	})
	address := must(bufio.NewReader(out).ReadString('\n'))
	client := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, // a handshake is not what is measured
		MaxConnsPerHost: inFlight, MaxIdleConnsPerHost: inFlight,
	}
	return &process{command: command, address: strings.TrimSpace(address), client: client}
}

// inFlight is how many requests wait for an answer at any moment.
const inFlight = 16

// turn sends requests for a while.
func (p *process) turn(b *testing.B, body []byte, size int) {
	b.Helper()
	begin, answered := time.Now(), make([]int, inFlight)
	var group errgroup.Group
	for i := range inFlight {
		group.Go(func() error {
			for time.Since(begin) < 300*time.Millisecond {
				if _, err := p.send(body, size); err != nil {
					return err
				}
				answered[i]++
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	for _, n := range answered {
		p.requests += n
	}
	p.lasted += time.Since(begin)
}

// send sends one request, and returns the size of the answer.
func (p *process) send(body []byte, size int) (int, error) {
	request := must(http.NewRequest(http.MethodPost, fmt.Sprintf("https://%s/%d?timeout=10s", p.address, size), bytes.NewReader(body)))
	request.Header.Set("Content-Type", "application/json")
	response, err := p.client.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the answer is %s", response.Status)
	}
	n, err := io.Copy(io.Discard, response.Body)
	return int(n), err
}

// cpu is the CPU time that the process has taken, to the nearest hundredth of a second.
func (p *process) cpu() time.Duration {
	stat := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))))
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	return time.Duration(must(strconv.Atoi(fields[11]))+must(strconv.Atoi(fields[12]))) * 10 * time.Millisecond // utime, stime
}
