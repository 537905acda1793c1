package lab

import (
	"bytes"
	"context"
	"fmt"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics of a relayer at one moment, as it serves them.
type Metrics map[string]*dto.MetricFamily

// Metrics reads the metrics of a relayer.
func (p *Process) Metrics(ctx context.Context) (Metrics, error) {
	_, text, err := p.Get(ctx, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", p.ID, err)
	}

	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", p.ID, err)
	}

	return families, nil
}

// Sum of the series of a metric that have all the labels, given as name, value, name, value; zero
// if there is none.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for _, series := range m[name].GetMetric() {
		matches := true
		for i := 0; i < len(labels); i += 2 {
			has := false
			for _, l := range series.GetLabel() {
				has = has || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
			}

			matches = matches && has
		}

		if matches {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue()
		}
	}

	return sum
}
