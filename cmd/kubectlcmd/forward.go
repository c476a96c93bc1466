package kubectlcmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"io"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// asker asks agents on their loopback interface; tests have another than [forwarder].
type asker interface {
	// get decodes the JSON of a path into into.
	get(ctx context.Context, a agents.Agent, path string, into any) error
}

// forwarder asks through the API server, with the caller's right to create pods/portforward. It opens no port on this machine,
// where others could ask too.
type forwarder struct{ config *rest.Config }

func (f forwarder) get(ctx context.Context, a agents.Agent, path string, into any) error {
	dialer, err := f.dialer(a)
	if err != nil {
		return err
	}
	type dialed struct {
		conn httpstream.Connection
		err  error
	}
	ready := make(chan dialed, 1)
	go func() {
		conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		ready <- dialed{conn, err}
	}()
	var conn httpstream.Connection
	select {
	case d := <-ready:
		if d.err != nil {
			return fmt.Errorf("forward port %d: %w", a.Port, d.err)
		}
		conn = d.conn
	case <-ctx.Done():
		go func() { // the dialer takes no context
			if d := <-ready; d.err == nil {
				_ = d.conn.Close()
			}
		}()
		return ctx.Err()
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	return request(ctx, conn, a, path, into)
}

// dialer tries WebSockets, and SPDY where an older API server or a proxy in between refuses them, as kubectl does.
func (f forwarder) dialer(a agents.Agent) (httpstream.Dialer, error) {
	config := rest.CopyConfig(f.config)
	config.GroupVersion, config.APIPath, config.NegotiatedSerializer = &corev1.SchemeGroupVersion, "/api", scheme.Codecs
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	url := client.Post().Resource("pods").Namespace(a.Namespace).Name(a.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	sockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, err
	}
	plain := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	return portforward.NewFallbackDialerForStreaming(sockets, plain, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// request sends an HTTP request over a connection of the port-forward protocol: a stream for errors, and one for data.
func request(ctx context.Context, conn httpstream.Connection, a agents.Agent, path string, into any) error {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(a.Port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	errorStream, err := conn.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("forward port %d: %w", a.Port, err)
	}
	_ = errorStream.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("forward port %d: %w", a.Port, err)
	}
	failed := make(chan error, 1)
	go func() {
		text, _ := io.ReadAll(io.LimitReader(errorStream, agentapi.MaxAnswer))
		if len(text) == 0 {
			failed <- nil
			return
		}
		failed <- fmt.Errorf("forward port %d: %s", a.Port, strings.TrimSpace(string(text)))
		_ = data.Reset() // nothing comes any more
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(int(a.Port))+path, nil)
	if err != nil {
		return err
	}
	r.Close = true
	if err = r.Write(data); err != nil {
		err = fmt.Errorf("%w: %w", agentapi.ErrBroken, err)
	} else {
		err = answer(data, r, into)
	}
	if !errors.Is(err, agentapi.ErrBroken) {
		return err
	}
	_ = data.Reset()
	select {
	case cause := <-failed: // says more than that the stream has ended
		if cause != nil {
			return cause
		}
	case <-ctx.Done():
	}
	return err
}

func answer(data io.Reader, r *http.Request, into any) error {
	response, err := http.ReadResponse(bufio.NewReader(data), r)
	if err != nil {
		return fmt.Errorf("%w: %w", agentapi.ErrBroken, err)
	}
	return agentapi.Read(response, into)
}
