// Command splice replaces a Service where there is no kube-proxy. It accepts TCP connections on
// one address, and joins each to the next of several backends that does not refuse it. It does not
// decrypt TLS, so clients see the certificates of the backends.
//
//	splice -listen 127.0.0.1:9443 -to 127.0.0.1:9444 -to 127.0.0.1:9445
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// dialTimeout bounds one attempt; all parties are on this machine.
const dialTimeout = time.Second

func main() {
	var listen string
	var backends []string
	flag.StringVar(&listen, "listen", "127.0.0.1:0", "`address` to accept on")
	flag.Func("to", "backend `address`; repeat it for several", func(address string) error {
		backends = append(backends, address)
		return nil
	})
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, listen, backends); err != nil {
		log.Fatalf("splice: %v", err)
	}
}

func run(ctx context.Context, listen string, backends []string) error {
	if len(backends) == 0 {
		return errors.New("no backend: give at least one -to")
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", listen, err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	fmt.Println(listener.Addr())

	var next atomic.Uint64
	for {
		client, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accepting: %w", err)
		}
		go serve(ctx, client, backends, int(next.Add(1)))
	}
}

// serve joins client to the first backend that accepts, beginning at the start-th, and returns
// when both directions have ended.
func serve(ctx context.Context, client net.Conn, backends []string, start int) {
	defer client.Close()
	for i := range backends {
		address := backends[(start+i)%len(backends)]
		backend, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
		if err != nil {
			log.Printf("splice: %s refuses: %v", address, err)
			continue
		}
		join(client, backend)
		return
	}
}

func join(a, b net.Conn) {
	defer b.Close()
	var both sync.WaitGroup
	both.Go(func() { copyHalf(a, b) })
	both.Go(func() { copyHalf(b, a) })
	both.Wait()
}

func copyHalf(to, from net.Conn) {
	_, _ = io.Copy(to, from) // the peer sees the end of the stream either way
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}
