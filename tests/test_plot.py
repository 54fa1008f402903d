"""The pictures: what is drawn, and where."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from cli_runner import run
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.proj3d import proj_transform

from gyrobn import (
    REGISTRY,
    SPD,
    Correlation,
    Euclidean,
    Grassmannian,
    Hyperboloid,
    PoincareBall,
    Product,
    ProjectedHypersphere,
    Sphere,
    Stereographic,
    batch_stats,
    frechet,
    frechet_mean,
    normalize,
)
from gyrobn.cli.demo import demonstrate
from gyrobn.plot import (
    Panel,
    can_plot,
    plot_convergence,
    plot_normalization,
    plot_overview,
    plot_tangent,
)

DRAWN = [name for name in REGISTRY if can_plot(demonstrate(name, 5).manifold)]
CANNOT = [PoincareBall(3), Grassmannian(4, 2), Correlation(4), Product(Sphere(1), Euclidean(1))]
LIBRARIES = [np.asarray, torch.as_tensor, jnp.asarray]


def labelled(ax):
    return dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))


def places(ax, label):
    """Return where a labelled artist shows its points, as axes have them."""
    artist = labelled(ax)[label]
    if ax.name == "3d":
        return np.stack(artist._offsets3d, axis=-1)
    return np.asarray(artist.get_offsets())


def on_paper(manifold, points):
    """Return where points should be drawn."""
    x = np.reshape(points, (-1, *manifold.point_shape))
    if isinstance(manifold, Correlation):
        return np.stack([x[:, 1, 0], x[:, 2, 0], x[:, 2, 1]], axis=-1)
    if isinstance(manifold, Grassmannian):  # a line by its point on the upper hemisphere
        return x[:, 1:, 0] * np.sign(x[:, :1, 0])
    return np.roll(x, -1, axis=-1) if x.shape[-1] == 3 else x


def assert_shows(manifold, ax, label, points):
    np.testing.assert_allclose(places(ax, label), on_paper(manifold, points), rtol=0, atol=1e-12)


def line_of(ax, label):
    """Return the points of a labelled line."""
    line = labelled(ax)[label]
    return np.stack(line.get_data_3d() if ax.name == "3d" else line.get_data(), axis=-1)


def surface_of(ax):
    (surface,) = [c for c in ax.collections if type(c).__name__ == "Poly3DCollection"]
    return np.asarray(surface._faces)


def boxes_of(figure, *more):
    """Return the extents of all texts and legends of a figure."""
    figure.draw_without_rendering()
    texts = [figure._suptitle] if figure._suptitle else []
    for ax in figure.axes:
        texts += [ax.title, *ax.texts]
        if ax.axison and ax.name != "3d":
            texts += [ax.xaxis.label, ax.yaxis.label]
    artists = [t for t in texts if t.get_text()] + [*figure.legends, *more]
    return [extent(artist) for artist in artists]


def extent(artist):
    """Return where an artist is on the page; matplotlib tells it of texts in space only as drawn.

    A text in space stands where the projection of its place is.
    """
    box = artist.get_window_extent()
    if not hasattr(artist, "get_position_3d"):
        return box
    transform = artist.axes.transData.transform
    *place, _ = proj_transform(*artist.get_position_3d(), artist.axes.get_proj())
    return box.translated(*(transform(place) - transform(artist.get_position())))


def check_no_overlap(figure, *more):
    boxes = boxes_of(figure, *more)
    for i, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i])
    for legend in figure.legends:  # below the axes and their labels: not over data
        assert all(legend.get_window_extent().y1 <= ax.bbox.y0 for ax in figure.axes)


# ---------------------------------------------------------------------- a geometry on paper


def test_what_has_a_picture():
    assert set(DRAWN) == {
        "correlation",
        "euclidean",
        "grassmannian",
        "hyperboloid",
        "klein",
        "poincare_ball",
        "projected_hypersphere",
        "proper_velocity",
        "sphere",
        "stereographic",
        "torus",
    }


@pytest.mark.parametrize("name", DRAWN)
def test_panel_shows_points_and_means_where_they_are(name):
    row = demonstrate(name, 30)
    ax = plot_normalization(row.manifold, row.x, row.y, row.target)
    assert_shows(row.manifold, ax, "input", row.x)
    assert_shows(row.manifold, ax, "output", row.y)
    assert_shows(row.manifold, ax, "input mean", frechet_mean(row.manifold, row.x))
    assert_shows(row.manifold, ax, "output mean", row.target)
    assert_shows(row.manifold, ax, "target β", row.target)
    assert type(row.manifold).__name__ in ax.get_title()
    line = line_of(ax, "geodesic between the means")
    for end, label in ((0, "input mean"), (-1, "output mean")):
        np.testing.assert_allclose(line[end], places(ax, label)[0], rtol=0, atol=1e-12)
    check_no_overlap(ax.figure)
    (legend,) = ax.figure.legends
    assert {text.get_text() for text in legend.get_texts()} == set(labelled(ax))


@pytest.mark.parametrize(
    ("manifold", "label", "radius"),
    [
        (PoincareBall(2, -0.25), "boundary", 2.0),
        (Grassmannian(3, 1), "equator", 1.0),
        (REGISTRY["klein"](2, -4.0), "boundary", 0.5),
        (REGISTRY["stereographic"](2, 0.25), "equator", 2.0),
        (REGISTRY["stereographic"](2, 0.0), None, None),
        (Euclidean(2), None, None),
    ],
)
def test_boundary(manifold, label, radius):
    x = manifold.random(20, rng=0, spread=0.2)
    ax = plot_normalization(manifold, x, manifold.scale(0.5, x))
    assert {"boundary", "equator"} & set(labelled(ax)) == ({label} if label else set())
    if label:
        np.testing.assert_allclose(np.linalg.norm(line_of(ax, label), axis=-1), radius)
    assert ax.get_aspect() == 1.0


@pytest.mark.parametrize("name", ["sphere", "hyperboloid", "correlation"])
def test_surface_panels_have_a_surface_and_one_scale(name):
    row = demonstrate(name, 20)
    ax = plot_normalization(row.manifold, row.x, row.y)
    assert ax.name == "3d"
    # no facet goes through the inside, as where opposite points are confused
    assert np.ptp(surface_of(ax), axis=1).max() < 0.25
    limits = np.asarray([ax.get_xlim3d(), ax.get_ylim3d(), ax.get_zlim3d()])
    ratio = np.ptp(limits, axis=1) / ax._box_aspect
    np.testing.assert_allclose(ratio, ratio[0])


def test_points_behind_the_horizon_are_faint():
    manifold = Sphere(2)
    x = manifold.from_normal(np.asarray([[-1.3, 0.0], [1.1, 0.1], [1.1, -0.1], [1.1, 0.0]]))
    ax = plot_normalization(manifold, x, x)
    eye = np.radians([ax.elev, ax.azim])
    level = np.cos(eye[0])
    eye = np.asarray([level * np.cos(eye[1]), level * np.sin(eye[1]), np.sin(eye[0])])
    # get_facecolor() leaves out the last colour before the picture is drawn, and sorts them after
    alpha = labelled(ax)["input"]._facecolors[:, 3]
    np.testing.assert_array_equal(alpha < 0.5, places(ax, "input") @ eye < 0)
    np.testing.assert_array_equal(alpha < 0.5, [True, False, False, False])
    (legend,) = ax.figure.legends  # shows the colour as it is in front
    first, *_ = legend.legend_handles
    assert first.get_facecolor()[0, 3] > 0.5


@pytest.mark.parametrize("representation", ["basis", "projector"])
def test_lines_are_drawn_by_their_points_of_the_upper_hemisphere(representation):
    bases = Grassmannian(3, 1).random(50, rng=0, spread=2.0)
    bases = bases * np.where(np.arange(50) % 2, 1.0, -1.0)[:, None, None]  # the same lines
    manifold = Grassmannian(3, 1, representation)
    x = bases if representation == "basis" else bases @ np.swapaxes(bases, -1, -2)
    with pytest.warns(match="another mean"):
        ax = plot_normalization(manifold, x, x)
    assert_shows(Grassmannian(3, 1), ax, "input", bases)


def test_a_geodesic_between_lines_goes_over_the_edge_and_comes_back():
    manifold = Grassmannian(3, 1)
    low = [manifold.from_normal(np.asarray([[a, 0.0]])) for a in (1.3, -1.3)]
    line = line_of(plot_normalization(manifold, *low), "geodesic between the means")
    assert np.isnan(line).all(axis=-1).sum() == 1
    steps = np.linalg.norm(np.diff(line, axis=0), axis=-1)
    assert np.nansum(steps) == pytest.approx(2 - 2 * np.sin(1.3), abs=1e-3)  # not through the disc


@pytest.mark.parametrize("manifold", Correlation.examples(), ids=lambda m: m.metric)
def test_correlations_are_drawn_inside_the_elliptope(manifold):
    x = manifold.random(200, rng=0, spread=2.0)
    ax = plot_normalization(manifold, x, manifold.scale(0.5, x))
    a, b, c = surface_of(ax).reshape(-1, 3).T
    np.testing.assert_allclose(1 + 2 * a * b * c - a**2 - b**2 - c**2, 0.0, atol=1e-12)
    corners = np.stack([line.get_data_3d() for line in ax.lines[:6]]).swapaxes(-1, -2)
    assert {tuple(p) for p in corners.reshape(-1, 3)} == {
        (1, 1, 1),
        (1, -1, -1),
        (-1, 1, -1),
        (-1, -1, 1),
    }
    edges = np.stack([line.get_data_3d() for line in ax.lines[:6]]).mean(axis=-1)
    for text in ax.texts:  # what it says is true of the edge that it stands at
        name, value = text.get_text().split(" = ")
        middle = edges[np.argmin(np.linalg.norm(edges - text.get_position_3d(), axis=-1))]
        place = ("C₂₁", "C₃₁", "C₃₂").index(name)
        assert middle[place] == float(value.replace("−", "-"))


def test_axes_of_the_caller():
    manifold = Sphere(2)
    x = manifold.random(20, rng=0, spread=0.2)
    figure = Figure()
    ax = figure.add_subplot(projection="3d")
    assert plot_normalization(manifold, x, x, ax=ax, title="mine") is ax
    assert ax.get_title() == "mine"
    assert figure.axes == [ax]
    assert not figure.legends
    with pytest.raises(ValueError, match="projection='3d'"):
        plot_normalization(manifold, x, x, ax=figure.add_subplot())


@pytest.mark.parametrize("name", DRAWN)
def test_a_single_point_can_be_drawn(name):
    manifold = demonstrate(name, 5).manifold
    x = manifold.from_normal(np.zeros((1, manifold.dim)))
    plot_normalization(manifold, x, x).figure.draw_without_rendering()


def test_tensors_and_learnt_curvature_can_be_drawn():
    curvature = torch.tensor(-0.5, requires_grad=True)
    manifold = PoincareBall(2, curvature)
    x = manifold.random(20, rng=0, like=torch.zeros(1))
    y = normalize(manifold, x, batch_stats(manifold, x), scale=0.5)
    ax = plot_normalization(manifold, x, y, bias=torch.zeros(2))
    assert ax.get_title() == "PoincareBall(2), K = −0.5"
    np.testing.assert_allclose(places(ax, "output"), y.detach().numpy())


@pytest.mark.parametrize("manifold", CANNOT, ids=str)
def test_what_cannot_be_drawn(manifold):
    assert not can_plot(manifold)
    x = manifold.random(5, rng=0, spread=0.1)
    with pytest.raises(ValueError, match=r"2-dimensional.*plot_tangent"):
        plot_normalization(manifold, x, x)
    with pytest.raises(ValueError, match=r"2-dimensional.*plot_tangent"):
        plot_overview([Panel(manifold, x, x)])


# ---------------------------------------------------------------------- the overview


def panels():
    rows = [demonstrate(name, 10) for name in DRAWN]
    return [Panel(r.manifold, r.x, r.y, r.target, f"{r.name}\ntwo") for r in rows]


@pytest.mark.parametrize("columns", [4, 2])
def test_overview_has_a_panel_a_geometry_and_one_legend(columns):
    figure = plot_overview(panels(), columns)
    *drawn, legend = figure.axes
    assert [ax.get_title() for ax in drawn] == [panel.title for panel in panels()]
    space = {"hyperboloid", "sphere", "correlation"}
    assert [ax.name == "3d" for ax in drawn] == [name in space for name in DRAWN]
    assert all(ax.get_legend() is None for ax in drawn)
    texts = [text.get_text() for text in legend.get_legend().get_texts()]
    assert set(texts) == {label for ax in drawn for label in labelled(ax)}
    assert len(texts) == len(set(texts))
    assert {"boundary", "equator", "target β"} <= set(texts)
    check_no_overlap(figure, legend.get_legend())


# ---------------------------------------------------------------------- convergence


def tolerances(ax):
    return [line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1]]


@pytest.mark.parametrize("manifold", [SPD(3), Correlation(4), Sphere(3), Euclidean(2)], ids=str)
def test_convergence_ends_where_the_mean_does(manifold):
    x = manifold.random(40, rng=1, spread=0.8)
    ax = plot_convergence(manifold, x)
    assert set(labelled(ax)) == {"residual", "tolerance"}
    (bound,) = tolerances(ax)
    result = frechet(manifold, x)
    evaluations, residual = labelled(ax)["residual"].get_data()
    np.testing.assert_array_equal(evaluations, np.arange(1, int(result.iterations) + 1))
    v = np.sqrt(np.sum(result.variance))
    if result.residual > 0:
        assert residual[-1] == pytest.approx(result.residual / v)
    else:  # has no logarithm
        assert 0 < residual[-1] <= 0.1 * bound
    assert (residual[:-1] > bound).all()
    assert residual[-1] <= 2 * bound  # rounding errors may keep it above
    assert ax.get_yscale() == "log"
    assert ax.get_xlabel() == "evaluations"
    assert "residual" in ax.get_ylabel()
    check_no_overlap(ax.figure)


def test_convergence_follows_the_tolerance():
    x = SPD(3).random(40, rng=1, spread=2.0)
    fine, coarse = (plot_convergence(SPD(3), x, tol=tol) for tol in (None, 1e-3))
    assert tolerances(coarse) == pytest.approx([1e-3])
    assert len(coarse.lines[0].get_xdata()) < len(fine.lines[0].get_xdata())
    first = plot_convergence(SPD(3), x, max_iter=2)
    np.testing.assert_array_equal(first.lines[0].get_xdata(), [1, 2])
    np.testing.assert_allclose(first.lines[0].get_ydata(), fine.lines[0].get_ydata()[:2], rtol=1e-6)


def test_convergence_draws_a_line_a_channel():
    rng = np.random.default_rng(0)
    x = SPD(3).random(30, 2, 2, rng=rng, spread=0.1)
    x[:, 0, 1] = SPD(3).random(30, rng=rng, spread=4.0)
    ax = plot_convergence(SPD(3), x)
    lines = labelled(ax)
    assert set(lines) == {*(f"channel {i}, {j}" for i in (0, 1) for j in (0, 1)), "tolerance"}
    iterations = frechet(SPD(3), x).iterations
    for i, j in np.ndindex(2, 2):
        line = lines[f"channel {i}, {j}"]
        assert line.get_xdata()[-1] == iterations[i, j]
        assert line.get_ydata()[-1] <= 2 * tolerances(ax)[2 * i + j]
    assert len({line.get_color() for line in lines.values()}) == 5
    many = plot_convergence(SPD(3), SPD(3).random(30, 20, rng=rng))
    assert len(tolerances(many)) == 20
    assert set(labelled(many)) == {"20 channels", "tolerance"}
    check_no_overlap(many.figure)


def test_convergence_of_equal_points_can_be_drawn():
    x = np.broadcast_to(SPD(2).random(rng=3), (5, 2, 2))
    ax = plot_convergence(SPD(2), x)
    assert np.isfinite(ax.lines[0].get_ydata()).all()
    ax.figure.draw_without_rendering()


@pytest.mark.parametrize("array", LIBRARIES, ids=lambda f: f.__module__)
def test_convergence_of_any_library(array):
    x = PoincareBall(2).random(30, rng=0).astype(np.float32)
    mine = Figure().add_subplot()
    ax = plot_convergence(PoincareBall(2), array(x), mine, title="t")
    assert ax is mine
    assert not mine.figure.legends
    assert ax.get_title() == "t"
    # the tolerance is that of the dtype
    assert tolerances(ax) == pytest.approx([8 * np.finfo(np.float32).eps], rel=2)
    np.testing.assert_allclose(
        ax.lines[0].get_ydata()[0],
        plot_convergence(PoincareBall(2), x.astype(np.float64)).lines[0].get_ydata()[0],
        rtol=1e-3,
    )


# ---------------------------------------------------------------------- tangent space


@pytest.mark.parametrize("name", REGISTRY)
def test_tangent_picture_of_every_geometry(name):
    row = demonstrate(name, 25)
    left, right = plot_tangent(row.manifold, row.x, row.y, row.target)
    p, q = places(left, "input"), places(right, "output")
    assert p.shape == q.shape == (25, 2)
    np.testing.assert_allclose(p.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(places(right, "output mean"), 0.0, atol=1e-10)
    np.testing.assert_allclose(places(right, "target β"), 0.0)
    if len(row.manifold.blocks) == 1:  # GyroBN scales the coordinates that are drawn
        factor = np.sqrt(row.variance_after / row.variance_before)
        np.testing.assert_allclose(q, factor * p, rtol=0, atol=1e-7)
    if row.manifold.dim == 2:  # nothing is lost: lengths are distances
        d = row.manifold.dist(frechet_mean(row.manifold, row.x), row.x)
        np.testing.assert_allclose(np.hypot(*p.T), d, rtol=1e-6, atol=1e-9)
    for ax, points in ((left, row.x), (right, row.y)):
        v = np.sqrt(np.sum(batch_stats(row.manifold, points).var))
        circle = labelled(ax)["standard deviation v"].get_data()
        np.testing.assert_allclose(np.hypot(*circle), v, rtol=1e-6)
        assert ax.get_aspect() == 1.0
        assert ax.get_title().endswith(f"v = {v:.3g}")
    assert left.get_xlim() == right.get_xlim()
    check_no_overlap(left.figure)


def test_tangent_axes_are_those_of_most_variance():
    c = np.random.default_rng(0).standard_normal((500, 5)) * [0.1, 3.0, 0.2, 1.0, 0.1]
    c -= c.mean(axis=0)
    left, _ = plot_tangent(Euclidean(5), c + 7.0, c)
    p = places(left, "input")
    np.testing.assert_allclose(abs(p - c[:, [1, 3]]).max(), 0.0, atol=0.3)
    values = np.linalg.svd(c, compute_uv=False) ** 2
    for label, value in zip((left.get_xlabel(), left.get_ylabel()), values, strict=False):
        assert f"({value / values.sum():.0%})" in label


def test_tangent_shows_a_mean_that_missed_its_target():
    manifold = SPD(2)
    x = manifold.random(50, rng=0)
    target = manifold.from_normal(np.asarray([0.5, 0.2, -0.3]))
    _, right = plot_tangent(manifold, x, x, target)
    away = np.hypot(*places(right, "output mean")[0])
    assert 0.1 < away <= manifold.dist(target, frechet_mean(manifold, x)) + 1e-9


def test_tangent_colours_by_label():
    manifold = SPD(4)
    x = manifold.random(60, rng=0)
    names = np.asarray(["rest", "left", "right"])[np.arange(60) % 3]
    left, right = plot_tangent(manifold, x, x, labels=names)
    whole, _ = plot_tangent(manifold, x, x)
    styles = set()
    for ax in (left, right):
        for name in np.unique(names):
            points = places(ax, name)
            np.testing.assert_allclose(points, places(whole, "input")[names == name], atol=1e-12)
            artist = labelled(left)[name]
            styles.add((tuple(artist.get_facecolor()[0]), artist.get_paths()[0].vertices.tobytes()))
    assert len(styles) == 3
    (legend,) = left.figure.legends
    texts = {text.get_text() for text in legend.get_texts()}
    assert texts >= {"rest", "left", "right", "input mean", "output mean", "standard deviation v"}
    check_no_overlap(left.figure)


@pytest.mark.parametrize("name", DRAWN)
def test_panel_colours_by_label(name):
    row = demonstrate(name, 30)
    names = np.asarray(["rest", "left", "right"])[np.arange(len(row.x)) % 3]
    ax = plot_normalization(row.manifold, row.x, row.y, row.target, labels=names)
    whole = plot_normalization(row.manifold, row.x, row.y, row.target)
    styles = set()
    for label in np.unique(names):
        after = labelled(ax)[label]
        np.testing.assert_allclose(
            places(ax, label), places(whole, "output")[names == label], rtol=0, atol=1e-12
        )
        drawn = list(ax.collections)
        before = drawn[drawn.index(after) - 1]  # open, in the same colour and form
        assert len(before.get_facecolor()) == 0
        np.testing.assert_array_equal(before.get_edgecolor()[0, :3], after.get_facecolor()[0, :3])
        np.testing.assert_array_equal(*(a.get_paths()[0].vertices for a in (before, after)))
        points = before._offsets3d if ax.name == "3d" else before.get_offsets().T
        expected = places(whole, "input")[names == label]
        np.testing.assert_allclose(np.transpose(points), expected, rtol=0, atol=1e-12)
        styles.add((tuple(after.get_facecolor()[0, :3]), after.get_paths()[0].vertices.tobytes()))
    assert len(styles) == 3
    assert not {colour for colour, _ in styles} & {
        tuple(labelled(ax)[mean].get_facecolor()[0, :3]) for mean in ("input mean", "output mean")
    }
    (legend,) = ax.figure.legends
    assert {text.get_text() for text in legend.get_texts()} >= {"input", "output", *names}
    check_no_overlap(ax.figure)


def test_a_legend_of_many_labels_leaves_the_axes_their_size():
    x = Euclidean(2).random(60, rng=0)
    sizes = []
    for count in (3, 30):
        ax = plot_normalization(Euclidean(2), x, x, labels=np.arange(60) % count)
        check_no_overlap(ax.figure)
        sizes.append(ax.get_window_extent().height)
    assert sizes[1] > 0.9 * sizes[0]


@pytest.mark.parametrize("draw", [plot_normalization, plot_tangent])
def test_labels_that_do_not_fit(draw):
    x = Euclidean(2).random(10, rng=0)
    with pytest.raises(ValueError, match=r"each of the 10 points.* of shape \(2,\) and 10 points"):
        draw(Euclidean(2), x, x, labels=[1, 2])
    with pytest.raises(ValueError, match=r"each of the 10 points.* and 9 points after"):
        draw(Euclidean(2), x, x[1:], labels=np.arange(10))


@pytest.mark.parametrize("draw", [plot_normalization, plot_tangent])
def test_points_that_are_none(draw):
    M = PoincareBall(2)
    x = M.random(10, rng=0)
    bad = x.copy()
    bad[7, 1] = np.nan
    with pytest.raises(ValueError, match="x has NaN in 1 of 10 samples, the first at index 7"):
        draw(M, bad, x)
    with pytest.raises(ValueError, match="y has NaN in 1 of 10 samples, the first at index 7"):
        draw(M, x, bad)
    with pytest.raises(ValueError, match=r"bias must be a point of .*\(2,\), got shape \(3,\)"):
        draw(M, x, x, np.zeros(3))


@pytest.mark.parametrize("manifold", [Euclidean(3), SPD(3), Grassmannian(4, 2)])
@pytest.mark.parametrize("factor", [0.02, 0.12])
@pytest.mark.parametrize("smaller", ["input", "output"])
def test_a_cloud_that_would_be_a_dot_has_axes_of_its_own(manifold, factor, smaller):
    x = manifold.random(50, rng=0, spread=0.2)
    y = normalize(manifold, x, batch_stats(manifold, x), scale=factor * 0.2, eps=0.0)
    x = normalize(manifold, x, batch_stats(manifold, x), scale=0.2, eps=0.0)
    left, right = plot_tangent(manifold, *((y, x) if smaller == "input" else (x, y)))
    small, large = (left, right) if smaller == "input" else (right, left)
    own = factor < 0.1
    assert small.get_xlim()[1] == pytest.approx((factor if own else 1.0) * large.get_xlim()[1])
    assert ("enlarged" in small.get_title()) == own
    assert "enlarged" not in large.get_title()
    if own:
        assert f"enlarged {1 / factor:.3g} times" in small.get_title()
    check_no_overlap(left.figure)


def test_points_without_a_spread_do_not_matter_for_the_axes():
    x = np.zeros((5, 3))
    left, right = plot_tangent(Euclidean(3), x + np.arange(5)[:, None], x)
    assert left.get_xlim() == right.get_xlim()


@pytest.mark.parametrize("array", LIBRARIES, ids=lambda f: f.__module__)
def test_tangent_of_any_library_on_axes_of_the_caller(array):
    manifold = SPD(3)
    x = manifold.random(20, rng=0)
    y = normalize(manifold, x, batch_stats(manifold, x))
    figure = Figure()
    mine = figure.subplots(1, 2)
    axes = plot_tangent(manifold, array(x), array(y), array(np.eye(3)), mine)
    assert list(axes) == list(mine)
    assert not figure.legends
    other, _ = plot_tangent(manifold, x, y)
    np.testing.assert_allclose(places(axes[0], "input"), places(other, "input"), atol=1e-5)


@pytest.mark.parametrize("manifold", [Euclidean(1), Euclidean(4)], ids=str)
@pytest.mark.parametrize("samples", [1, 2])
def test_tangent_of_few_points_and_dimensions(manifold, samples):
    x = manifold.random(samples, rng=0)
    left, right = plot_tangent(manifold, x, 2.0 * x)
    left.figure.draw_without_rendering()
    assert places(right, "output").shape == (samples, 2)


def test_tangent_refuses_what_it_cannot_draw():
    x = Euclidean(3).random(10, rng=0)
    with pytest.raises(ValueError, match="one channel at a time"):
        plot_tangent(Euclidean(3), x[:, None], x[:, None])
    with pytest.raises(ValueError, match="two axes"):
        plot_tangent(Euclidean(3), x, x, axes=[None])


# ---------------------------------------------------------------------- matplotlib


def test_matplotlib_is_imported_late_and_pyplot_never():
    program = (
        "import sys, gyrobn.plot as p; from gyrobn import Sphere; M = Sphere(2);"
        "print('matplotlib' in sys.modules);"
        "x = M.random(9, rng=0, spread=0.2);"
        "p.plot_normalization(M, x, x); p.plot_convergence(M, x); p.plot_tangent(M, x, x);"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert run(start=("-c", program)).stdout.split() == ["False", "False"]


def test_error_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    x = ProjectedHypersphere(2).random(5, rng=0, spread=0.1)
    with pytest.raises(ImportError, match=r"gyrobn\[plot\]"):
        plot_normalization(ProjectedHypersphere(2), x, x)


@pytest.mark.parametrize(
    "manifold", [PoincareBall(2), Euclidean(2), Stereographic(2, 0.25)], ids=str
)
def test_rings_are_half_a_unit_apart(manifold):
    x = manifold.from_normal(np.asarray([[1.3, 0.0], [0.0, 0.2]]))
    ax = plot_normalization(manifold, x, manifold.scale(0.5, x))
    rings = [np.stack(line.get_data(), axis=-1) for line in ax.lines if "rings" in line.get_label()]
    for ring, distance in zip(rings, (0.5, 1.0), strict=True):
        np.testing.assert_allclose(manifold.norm(ring), distance, rtol=1e-9)


@pytest.mark.parametrize("K", [0.0, 0.25])
def test_all_points_are_within_the_axes(K):
    manifold = Stereographic(2, K)
    x = manifold.from_normal(np.asarray([[4.0, 0.0], [3.0, 1.0]]))
    ax = plot_normalization(manifold, x, manifold.scale(0.5, x))
    assert abs(places(ax, "input")).max() < ax.get_xlim()[1]
    assert ax.get_xlim() == ax.get_ylim()


def test_the_bowl_is_under_all_points():
    manifold = Hyperboloid(2)
    x = manifold.from_normal(np.asarray([[1.3, 0.0], [0.0, 0.2], [0.1, 0.1]]))
    ax = plot_normalization(manifold, x, manifold.scale(0.5, x))
    assert surface_of(ax)[..., 2].max() == pytest.approx(np.cosh(1.3))
    assert ax.get_zlim3d()[1] >= np.cosh(1.3)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_tangent_axes_have_a_sign(sign):
    """The largest coordinate of an axis is positive, so that a picture is the same each time."""
    c = np.random.default_rng(0).standard_normal((50, 3)) * [0.3, sign * 3.0, 1.0]
    left, _ = plot_tangent(Euclidean(3), c, c)
    p, c = places(left, "input"), c - c.mean(axis=0)
    assert np.sum(p[:, 0] * c[:, 1]) > 0
    assert np.sum(p[:, 1] * c[:, 2]) > 0


@pytest.mark.parametrize("factor", [0.02, 0.2, 5.0, 50.0])
def test_tangent_holds_all_points(factor):
    x = Euclidean(3).random(50, rng=0)
    left, right = plot_tangent(Euclidean(3), x, factor * x)
    for ax, label in ((left, "input"), (right, "output")):
        assert abs(places(ax, label)).max() < ax.get_xlim()[1]
