package printers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Trace prints the fate of a packet, of a connection, or of the packets in a file.
type Trace struct {
	direction, proto, src, dst, iface string
	sport, dport                      uint16
	uid, gid, mark                    uint32

	connection      bool
	packets, output string
}

// Describe gives the command its texts and flags.
func (t *Trace) Describe(cmd *cobra.Command) {
	cmd.Short = "Say what becomes of a packet, or of a connection both ways, and why"
	cmd.Long = `trace says which rules a packet meets and where it goes.

With --connection the packet opens a connection, which is traced both ways: the
first packet, the answer of the socket that gets it, and the later packets, with
address translation, marks, conntrack zones and policy routing; then the
connection that the proxy opens for it. Its verdict is established, refused,
dropped, answer-lost, lost, wrong-peer or loop. The proxy's sockets are those of
the pod's configuration, and its other ports are the application's. Without
--src, what comes in comes from an example address.`
	fs := cmd.Flags()
	fs.StringVar(&t.direction, "direction", "out", "out: from a process in the pod; in: from outside")
	fs.StringVar(&t.proto, "proto", "tcp", "tcp or udp")
	fs.StringVar(&t.src, "src", "", "source address")
	fs.StringVar(&t.dst, "dst", "", "destination address")
	fs.Uint16Var(&t.sport, "sport", 0, "source port")
	fs.Uint16Var(&t.dport, "dport", 0, "destination port")
	fs.Uint32Var(&t.uid, "uid", 0, "user that sends, when out")
	fs.Uint32Var(&t.gid, "gid", 0, "group that sends, when out")
	fs.StringVar(&t.iface, "interface", "", `interface that the packet arrives or leaves by (default "eth0")`)
	fs.Uint32Var(&t.mark, "mark", 0, "the packet's mark")
	fs.BoolVar(&t.connection, "connection", false, "trace the connection that the packet opens, both ways")
	fs.StringVar(&t.packets, "packets", "", "file of packets, one in JSON a line; - is standard input")
	fs.VarP(cli.Choice(&t.output, "text", "json", "mermaid"), "output", "o", "text, json or mermaid")
}

var packetFlags = []string{"direction", "proto", "src", "dst", "sport", "dport", "uid", "gid", "interface", "mark"}

// packet parses the flags. The error lists every bad one.
func (t *Trace) packet() (trace.Packet, error) {
	var errs []error
	addr := func(flag, s string) (a netip.Addr) {
		if s == "" {
			return a
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %q: not an address", flag, s))
		}
		return a
	}
	proto, err := trace.ParseProto(t.proto)
	if err != nil {
		errs = append(errs, fmt.Errorf("--proto: %w", err))
	}
	out := trace.Packet{
		Direction: trace.Direction(t.direction), Proto: proto,
		Src: netip.AddrPortFrom(addr("src", t.src), t.sport), Dst: netip.AddrPortFrom(addr("dst", t.dst), t.dport),
		UID: t.uid, GID: t.gid, Mark: t.mark,
	}
	if t.dst == "" {
		errs = append(errs, errors.New("--dst is required"))
	}
	switch out.Direction {
	case trace.Out:
		out.OutInterface = t.iface
	case trace.In:
		out.InInterface = t.iface
	default:
		errs = append(errs, fmt.Errorf("--direction %q: not out or in", t.direction))
	}
	return out, cli.Usage(errors.Join(errs...))
}

// Check refuses flags that contradict each other. Stdin: standard input is something else already.
func (t *Trace) Check(cmd *cobra.Command, stdin bool) error {
	if t.connection && t.output == "mermaid" {
		return cli.Usagef("--output mermaid: with --connection it is text or json")
	}
	if t.packets == "" {
		_, err := t.packet()
		return err
	}
	for _, name := range packetFlags {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s: with --packets the packets are in the file", name)
		}
	}
	if t.packets == "-" && stdin {
		return cli.Usagef("--packets: only one file can be standard input")
	}
	return nil
}

// Print prints as the flags say, which have been checked.
func (t *Trace) Print(s Streams, x explain.Explanation) error {
	if x.Err() != nil {
		return x.Err()
	}
	Warn(s.Err, x)
	if t.packets != "" {
		return t.lines(s, x)
	}
	p, err := t.packet()
	if err != nil {
		return err
	}
	out := visible.To(s.Out)
	if t.connection {
		got, err := x.Connect(p)
		switch {
		case err != nil:
			return err
		case t.output == "json":
			return JSON(s.Out, struct {
				trace.Conversation
				Configuration explain.Configuration `json:"configuration"`
			}{got, x.Configuration})
		}
		Configuration(s.Out, "", x.Configuration)
		out.Text(got.Explain())
		return out.Err()
	}
	r, err := x.Trace(p)
	if err != nil {
		return err
	}
	switch t.output {
	case "json":
		return JSON(s.Out, struct {
			trace.Result
			Configuration explain.Configuration `json:"configuration"`
		}{r, x.Configuration})
	case "mermaid":
		var rs ruleset.Ruleset
		if program := x.Plan.Ruleset.Family(ruleset.FamilyOf(p.Dst.Addr())); program != nil {
			rs.Set(program)
		}
		Configuration(s.Err, "", x.Configuration)
		out.Text(mermaid(rs, &r))
	default:
		Configuration(s.Out, "", x.Configuration)
		out.Printf("%s\n", p)
		out.Text(r.Explain())
	}
	return out.Err()
}

// maxLine bounds a line of --packets in bytes; a packet takes a few hundred.
const maxLine = 64 << 10

// lines writes one result for each line that is not blank, in order. A line that is not a packet gets {"error": …}.
func (t *Trace) lines(s Streams, x explain.Explanation) error {
	Configuration(s.Err, "", x.Configuration) // Out has a line for each packet
	in := s.In
	if t.packets != "-" {
		b, err := s.Read(t.packets)
		if err != nil {
			return err
		}
		in = bytes.NewReader(b)
	}
	out := bufio.NewWriter(s.Out)
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	number, bad := 0, 0
	for lines.Scan() {
		number++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var p trace.Packet
		var answer any
		err := json.Unmarshal(lines.Bytes(), &p)
		switch {
		case err != nil:
		case t.connection:
			answer, err = x.Connect(p)
		default:
			answer, err = x.Trace(p)
		}
		if err != nil {
			bad++
			answer = map[string]string{"error": fmt.Sprintf("line %d: %s", number, strings.ReplaceAll(err.Error(), "\n", "; "))}
		}
		if err := e.Encode(answer); err != nil {
			return err
		}
	}
	if err := errors.Join(lines.Err(), out.Flush()); err != nil {
		return fmt.Errorf("packets, after line %d: %w", number, err)
	}
	if bad > 0 {
		return fmt.Errorf("packets: %d of %d lines could not be traced", bad, number)
	}
	return nil
}
