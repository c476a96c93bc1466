package redirectcmd

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
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// packetFlags are the flags that describe one packet.
type packetFlags struct {
	direction, proto, src, dst, iface string
	sport, dport                      uint16
	uid, gid, mark                    uint32
}

func (p Program) traceCommand() *cobra.Command {
	var flags packetFlags
	var packets, output string
	var connection bool
	cmd, c := p.newCommand("trace -f pod.yaml [--connection] (--direction out --dst A --dport N … | --packets -)",
		"Say what becomes of a packet, or of a connection both ways, and why", func(c *common, cmd *cobra.Command) error {
			if connection && output == "mermaid" {
				return errConnectionChart
			}
			if packets != "" {
				for _, name := range packetFlagNames {
					if cmd.Flags().Changed(name) {
						return cli.Usagef("--%s: with --packets the packets are in the file", name)
					}
				}
				return runTraceLines(c, packets, connection)
			}
			return runTrace(c, flags, output, connection)
		})
	c.templates = true
	cmd.Long = `trace says which rules a packet meets and where it goes.

With --connection the packet opens a connection, which is traced both ways: the
first packet, the answer of the socket that gets it, and the later packets, with
address translation, marks, conntrack zones and policy routing; then the
connection that the proxy opens for it. Its verdict is established, refused,
dropped, answer-lost, lost, wrong-peer or loop. The proxy's sockets are those of
the pod's configuration, and its other ports are the application's. Without
--src, what comes in comes from an example address.`
	fs := cmd.Flags()
	fs.StringVar(&flags.direction, "direction", "out", "out: from a process in the pod; in: from outside")
	fs.StringVar(&flags.proto, "proto", "tcp", "tcp or udp")
	fs.StringVar(&flags.src, "src", "", "source address")
	fs.StringVar(&flags.dst, "dst", "", "destination address")
	fs.Uint16Var(&flags.sport, "sport", 0, "source port")
	fs.Uint16Var(&flags.dport, "dport", 0, "destination port")
	fs.Uint32Var(&flags.uid, "uid", 0, "user that sends, when out")
	fs.Uint32Var(&flags.gid, "gid", 0, "group that sends, when out")
	fs.StringVar(&flags.iface, "interface", "", `interface that the packet arrives or leaves by (default "eth0")`)
	fs.Uint32Var(&flags.mark, "mark", 0, "the packet's mark")
	fs.BoolVar(&connection, "connection", false, "trace the connection that the packet opens, both ways")
	fs.StringVar(&packets, "packets", "", "file of packets, one in JSON a line; - is standard input")
	fs.VarP(cli.Choice(&output, "text", "json", "mermaid"), "output", "o", "text, json or mermaid")
	return cmd
}

var packetFlagNames = []string{"direction", "proto", "src", "dst", "sport", "dport", "uid", "gid", "interface", "mark"}

// packet parses the flags. The error lists every bad one.
func (p packetFlags) packet() (trace.Packet, error) {
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
	proto, err := trace.ParseProto(p.proto)
	if err != nil {
		errs = append(errs, fmt.Errorf("--proto: %w", err))
	}
	out := trace.Packet{
		Direction: trace.Direction(p.direction), Proto: proto,
		Src: netip.AddrPortFrom(addr("src", p.src), p.sport), Dst: netip.AddrPortFrom(addr("dst", p.dst), p.dport),
		UID: p.uid, GID: p.gid, Mark: p.mark,
	}
	if p.dst == "" {
		errs = append(errs, errors.New("--dst is required"))
	}
	switch out.Direction {
	case trace.Out:
		out.OutInterface = p.iface
	case trace.In:
		out.InInterface = p.iface
	default:
		errs = append(errs, fmt.Errorf("--direction %q: not out or in", p.direction))
	}
	return out, cli.Usage(errors.Join(errs...))
}

func runTrace(c *common, flags packetFlags, output string, connection bool) error {
	p, err := flags.packet()
	if err != nil {
		return err
	}
	t, err := c.target(nil)
	if err != nil {
		return err
	}
	c.warn(t)
	if connection {
		got, err := t.Connect(p)
		if err != nil {
			return err
		}
		return c.printConnection(got, output)
	}
	r, err := t.Trace(p)
	if err != nil {
		return err
	}
	switch output {
	case "json":
		return printJSON(c.Stdout, struct {
			trace.Result
			Configuration explain.Configuration `json:"configuration"`
		}{r, c.config})
	case "mermaid":
		var rs ruleset.Ruleset
		if program := t.Plan.Ruleset.Program(ruleset.FamilyOf(p.Dst.Addr())); program != nil {
			rs.Set(program)
		}
		c.sayConfig(c.Stderr, "")
		visible.To(c.Stdout).Text(mermaid(rs, &r))
		return nil
	}
	c.sayConfig(c.Stdout, "")
	out := visible.To(c.Stdout)
	out.Printf("%s\n", p)
	out.Text(r.Explain())
	return nil
}

// maxLine bounds a line of --packets in bytes; a packet takes a few hundred.
const maxLine = 64 << 10

// runTraceLines writes one result for each line that is not blank, in order. A
// line that is not a packet gets {"error": …}.
func runTraceLines(c *common, name string, connection bool) error {
	if name == "-" && c.inputs() > 0 {
		return cli.Usagef("--packets and -f: only one of them can be standard input")
	}
	t, err := c.target(nil)
	if err != nil {
		return err
	}
	c.warn(t)
	c.sayConfig(c.Stderr, "") // standard output has a line for each packet
	in := c.Stdin
	if name != "-" {
		b, err := c.read(name)
		if err != nil {
			return err
		}
		in = bytes.NewReader(b)
	}
	out := bufio.NewWriter(c.Stdout)
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
		case connection:
			answer, err = t.Connect(p)
		default:
			answer, err = t.Trace(p)
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

// printConnection writes a traced connection.
func (c *common) printConnection(got trace.Conversation, output string) error {
	if output == "json" {
		return printJSON(c.Stdout, struct {
			trace.Conversation
			Configuration explain.Configuration `json:"configuration"`
		}{got, c.config})
	}
	c.sayConfig(c.Stdout, "")
	visible.To(c.Stdout).Text(got.Explain())
	return nil
}

var errConnectionChart = cli.Usagef("--output mermaid: with --connection it is text or json")
