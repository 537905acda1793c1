package bench

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// plot is a row of panels over one x axis, both axes logarithmic.
type plot struct {
	x      []float64
	xName  string
	panels []panel
}

type panel struct {
	title string
	lines []line
}

type line struct {
	name   string
	y      []float64 // for each x; zero: not drawn
	dashed bool
}

// Sizes in pixels.
const (
	panelWidth, panelHeight = 300, 220
	left, top, bottom       = 56, 34, 62
)

var colours = []string{"#1f6feb", "#d1570a", "#6e7781", "#1a7f37"}

// draw writes the plot into the folder for plots, if there is one.
func (o *Options) draw(name string, p *plot) error {
	if o.Plots == "" {
		return nil
	}

	path := filepath.Join(o.Plots, name)
	if err := os.WriteFile(path, []byte(p.svg(o.Commit)), 0o644); err != nil { //nolint:gosec // not secret
		return fmt.Errorf("write the plot: %w", err)
	}

	o.say("plot: %s", path)

	return nil
}

func (p *plot) svg(commit string) string {
	var b strings.Builder
	width, height := len(p.panels)*(panelWidth+left)+20, panelHeight+top+bottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for i, one := range p.panels {
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", i*(panelWidth+left)+left, top)
		one.svg(&b, p)
		b.WriteString("</g>\n")
	}

	fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#57606a">%s · commit %s</text>`+"\n", left, height-8,
		html.EscapeString(p.xName), html.EscapeString(commit))
	b.WriteString("</svg>\n")

	return b.String()
}

// axis is logarithmic, from one power of ten to another.
type axis struct {
	low, high float64 // exponents
	pixels    float64
}

func newAxis(pixels float64, values ...[]float64) axis {
	a := axis{math.Inf(1), math.Inf(-1), pixels}
	for _, list := range values {
		for _, v := range list {
			if v > 0 {
				a.low, a.high = min(a.low, math.Floor(math.Log10(v))), max(a.high, math.Ceil(math.Log10(v)))
			}
		}
	}

	if math.IsInf(a.low, 1) {
		a.low, a.high = 0, 1
	}

	a.high = max(a.high, a.low+1)

	return a
}

func (a axis) at(v float64) float64 { return (math.Log10(v) - a.low) / (a.high - a.low) * a.pixels }

// ticks are the exponents to draw, as many as fit.
func (a axis) ticks() (list []float64) {
	step := math.Ceil((a.high - a.low) / 8)
	for e := a.low; e <= a.high; e += step {
		list = append(list, e)
	}

	return list
}

func (p *panel) svg(b *strings.Builder, of *plot) {
	x := newAxis(panelWidth, of.x)
	var all [][]float64
	for _, l := range p.lines {
		all = append(all, l.y)
	}

	y := newAxis(panelHeight, all...)
	fmt.Fprintf(b, `<text x="0" y="-12" font-weight="bold">%s</text>`+"\n", html.EscapeString(p.title))
	for _, e := range y.ticks() {
		h := panelHeight - y.at(math.Pow(10, e))
		fmt.Fprintf(b, `<line x1="0" y1="%.1f" x2="%d" y2="%.1f" stroke="#d0d7de"/><text x="-6" y="%.1f" text-anchor="end">%s</text>`+"\n", h, panelWidth, h, h+4, power(e))
	}

	for _, e := range x.ticks() {
		w := x.at(math.Pow(10, e))
		fmt.Fprintf(b, `<line x1="%.1f" y1="0" x2="%.1f" y2="%d" stroke="#eaeef2"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", w, w, panelHeight, w, panelHeight+16, power(e))
	}

	legend := 0
	for i, l := range p.lines {
		colour, dash := colours[i%len(colours)], ""
		if l.dashed {
			dash = ` stroke-dasharray="5 4"`
		}

		var points, dots strings.Builder
		for j, v := range l.y {
			if v <= 0 {
				continue
			}

			w, h := x.at(of.x[j]), panelHeight-y.at(v)
			fmt.Fprintf(&points, "%.1f,%.1f ", w, h)
			fmt.Fprintf(&dots, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s: %.4g at %.0f</title></circle>`, w, h,
				colour, html.EscapeString(l.name), v, of.x[j])
		}

		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>%s`+"\n",
			strings.TrimSpace(points.String()), colour, dash, dots.String())
		fmt.Fprintf(b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", legend, panelHeight+34, colour,
			html.EscapeString(l.name))
		legend += 6*len(l.name) + 14
	}
}

// power is a power of ten as people write it: small ones as numbers.
func power(e float64) string {
	if e >= -2 && e <= 3 {
		return fmt.Sprint(math.Pow(10, e))
	}

	return fmt.Sprintf(`10<tspan dy="-4" font-size="8">%.0f</tspan>`, e)
}
